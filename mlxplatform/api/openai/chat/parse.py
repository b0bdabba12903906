"""A chat completions body as a contract request. Every field of the current OpenAI SDK has its row in FIELDS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxplatform.api import memory_tools
from mlxplatform.api.conversation import (
    check_calls_answered,
    guided,
    join_parts,
    limit_tools,
    read_response_format,
    read_tool_calls,
    read_tool_choice,
    read_tools,
    structured_outputs,
)
from mlxplatform.api.fields import (
    MAX_COUNT,
    SHOWN,
    Fields,
    array,
    boolean,
    honoured,
    ignored,
    integer,
    mapping,
    metadata,
    missing,
    one_of,
    read_fields,
    refused,
    table,
    text,
    wrong_type,
    wrong_value,
)
from mlxplatform.api.running import Asked, choices_of
from mlxplatform.api.sampling import OPENAI_FIELDS, sampling_of, stop
from mlxplatform.inference.client import new_id
from mlxplatform.inference.contract import Constraint, Image, InferenceRequest, Message, Refusal

ROLES = ("system", "developer", "user", "assistant", "tool")
#: Choices of one request; each is a sequence in the engine's batch.
MAX_CHOICES = 16
MAX_TOP_LOGPROBS = 20
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
#: Longest name of a session or adapter.
MAX_NAME = 256


def read_messages(raw: Any, param: str) -> list[Message]:
    items = array(raw, param)
    if not items:
        raise Refusal(400, "empty_array", f"Invalid '{param}': empty array. Expected at least one message.", param=param)
    messages = [_message(item, f"{param}[{index}]") for index, item in enumerate(items)]
    check_calls_answered(messages, param)
    return messages


def _message(raw: Any, param: str) -> Message:
    message = mapping(raw, param)
    role = message.get("role")
    if role is None:
        raise missing(f"{param}.role")
    if not isinstance(role, str):
        raise wrong_type(f"{param}.role", "a string", role)
    if role not in ROLES:
        names = ", ".join(f"'{name}'" for name in ROLES)
        raise Refusal(
            400,
            "invalid_value",
            f"Invalid value: '{role[:SHOWN]}'. Supported roles are: {names}.",
            param=f"{param}.role",
        )
    name = message.get("name")
    if name is not None:
        text(MAX_NAME)(name, f"{param}.name")
    content = message.get("content")
    if role == "assistant":
        return _assistant(message, content, name, param)
    if "content" not in message or (content is None and role != "tool"):
        raise missing(f"{param}.content")
    images: list[Image] = []
    seen = images if role in ("user", "tool") else None
    joined = "" if content is None else join_parts(content, f"{param}.content", images=seen)
    if role == "tool":
        call_id = message.get("tool_call_id")
        if call_id is None:
            raise missing(f"{param}.tool_call_id")
        call_id = text()(call_id, f"{param}.tool_call_id")
        return Message("tool", joined, name=name, tool_call_id=call_id, images=images or None)
    return Message("user" if role == "user" else "system", joined, name=name, images=images or None)


def _assistant(message: Mapping[str, Any], content: Any, name: str | None, param: str) -> Message:
    for field in ("audio", "function_call"):
        if message.get(field) is not None:
            raise Refusal(400, "unsupported_parameter", f"'{param}.{field}' is not supported here.", param=f"{param}.{field}")
    calls = message.get("tool_calls")
    thoughts = message.get("reasoning_content") or message.get("reasoning")
    if content is None and message.get("refusal") is not None:
        content = text()(message["refusal"], f"{param}.refusal")
    return Message(
        "assistant",
        None if content is None else join_parts(content, f"{param}.content"),
        name=name,
        reasoning=None if thoughts is None else text()(thoughts, f"{param}.reasoning"),
        tool_calls=(read_tool_calls(calls, f"{param}.tool_calls") or None) if calls is not None else None,
    )


def stream_options(raw: Any, param: str) -> bool:
    """Whether usage was asked for."""
    if not isinstance(raw, dict):
        raise wrong_type(param, "an object", raw)
    for key in ("include_usage", "include_obfuscation"):
        value = raw.get(key)
        if value is not None and not isinstance(value, bool):
            raise wrong_type(param, f"a boolean in '{key}'", value)
    return bool(raw.get("include_usage"))


def modalities(raw: Any, param: str) -> list[str]:
    for index, item in enumerate(array(raw, param)):
        if item != "text":
            raise wrong_value(f"{param}[{index}]", "the model answers in text only.")
    return ["text"]


FIELDS = table(
    honoured("messages", read_messages, "text parts are joined; developer is system", required=True),
    honoured("model", text(), "unknown names: see routing"),
    honoured("stream", boolean),
    honoured("stream_options", stream_options, "include_usage; include_obfuscation has no effect"),
    honoured("max_completion_tokens", integer(1, MAX_COUNT), "wins over max_tokens"),
    honoured("max_tokens", integer(1, MAX_COUNT)),
    honoured("n", integer(1, MAX_CHOICES), "the prompt counts once in usage"),
    honoured("stop", stop, "up to four; empty strings are dropped"),
    honoured("logprobs", boolean),
    honoured("top_logprobs", integer(0, MAX_TOP_LOGPROBS), "needs logprobs"),
    honoured("tools", read_tools, "functions only"),
    honoured("tool_choice", lambda raw, param: raw, "enforced by a grammar"),
    honoured("parallel_tool_calls", boolean, "false: calls after the first are dropped"),
    honoured("response_format", read_response_format, "enforced by a grammar"),
    honoured("guided_json", guided("json_schema")),
    honoured("guided_regex", guided("regex")),
    honoured("guided_choice", guided("choice")),
    honoured("guided_grammar", guided("grammar")),
    honoured("structured_outputs", structured_outputs),
    honoured("reasoning_effort", one_of(*EFFORTS), "none turns thinking off where the model can"),
    honoured("chat_template_kwargs", mapping),
    honoured("store", boolean, "false also keeps its words out of the history"),
    honoured("metadata", metadata, "kept with stored completions"),
    honoured("adapter", text(MAX_NAME)),
    honoured("session_id", text(MAX_NAME), "prompt-cache affinity; never changes output"),
    honoured("prompt_cache_key", text(MAX_NAME), "prompt-cache affinity; session_id wins"),
    honoured("memory", memory_tools.read_memory, "true or a vault's name: the model may look things up in it"),
    honoured("modalities", modalities, "text only"),
    *OPENAI_FIELDS,
    refused("functions", "Use 'tools'.", []),
    refused("function_call", "Use 'tool_choice'."),
    refused("audio", "The model answers in text only."),
    refused("web_search_options", "This server runs no web search."),
    refused("moderation", "This server moderates nothing."),
    ignored("prediction", "an optimisation; the answer is the same"),
    ignored("prompt_cache_options", "prompts are cached anyway"),
    ignored("prompt_cache_retention", "prompts are cached anyway"),
    ignored("safety_identifier", "no use for it"),
    ignored("user", "no use for it"),
    ignored("service_tier", "there is one tier"),
    ignored("verbosity", "no local model has it"),
)


def parse(body: Mapping[str, Any]) -> Asked:
    """The request a body asks for.

    Raises:
        Refusal: 400 naming the field.
    """
    fields = read_fields(body, FIELDS)
    stream = fields.get("stream", False)
    if "stream_options" in fields and not stream:
        raise wrong_value("stream_options", "only allowed when 'stream' is true.")
    remembers = fields.get("memory", False)
    tools = memory_tools.beside(fields.get("tools", [])) if remembers else fields.get("tools", [])
    mode, only = read_tool_choice(fields.get("tool_choice"), tools)
    tools, choice, forced = limit_tools(tools, mode, only)
    request = InferenceRequest(
        id=new_id("chatcmpl-"),
        model="",
        kind="chat",
        messages=memory_tools.guided(fields["messages"]) if remembers else fields["messages"],
        tools=tools,
        tool_choice=choice,
        template_kwargs=fields.get("chat_template_kwargs", {}),
        reasoning_effort=fields.get("reasoning_effort"),
        sampling=sampling_of(fields),
        max_tokens=fields.get("max_completion_tokens", fields.get("max_tokens")),
        stop=fields.get("stop", []),
        logprobs=read_logprobs(fields),
        constraint=forced or _constraint(fields),
        adapter=fields.get("adapter"),
        session=fields.get("session_id", fields.get("prompt_cache_key")),
    )
    n = fields.get("n", 1)
    if remembers and (n > 1 or (stream and fields.get("store"))):
        raise wrong_value("memory", "it goes with one choice, and not with a stored stream.")
    if remembers:
        memory_tools.refuse_fixed_form(request.constraint)
    return Asked(
        requests=tuple(choices_of(request, n)),
        model=fields.get("model"),
        n=n,
        stream=stream,
        include_usage=fields.get("stream_options", False),
        ignored=fields.ignored,
        one_call=not fields.get("parallel_tool_calls", True),
        store=fields.get("store", False),
        record=fields.get("store", True),
        metadata=fields.get("metadata"),
        memory=remembers,
    )


def read_logprobs(fields: Fields) -> int | None:
    wanted, top = fields.get("logprobs", False), fields.get("top_logprobs")
    if top is not None and not wanted:
        raise wrong_value("top_logprobs", "only allowed when 'logprobs' is true.")
    return (top or 0) if wanted else None


def _constraint(fields: Fields) -> Constraint | None:
    names = ("response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs")
    given = [name for name in names if fields.get(name) is not None]
    if len(given) > 1:
        raise wrong_value(given[1], f"it cannot be combined with '{given[0]}'.")
    constraint: Constraint | None = fields.get(given[0]) if given else None
    return constraint
