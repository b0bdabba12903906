"""A responses body as fields and items. What it refers to (a previous response, a conversation) is spliced in later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlxplatform.api import memory_tools
from mlxplatform.api.conversation import (
    guided,
    limit_tools,
    read_function,
    read_response_format,
    read_schema,
    read_tool_choice,
    refuse_duplicates,
    structured_outputs,
)
from mlxplatform.api.fields import (
    MAX_COUNT,
    Fields,
    boolean,
    honoured,
    ignored,
    integer,
    list_of,
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
from mlxplatform.api.openai.chat.parse import EFFORTS, MAX_NAME, MAX_TOP_LOGPROBS
from mlxplatform.api.openai.responses.items import Item, flat_tools, read_input, to_messages
from mlxplatform.api.running import Asked
from mlxplatform.api.sampling import OPENAI_FIELDS, sampling_of, stop
from mlxplatform.inference import history
from mlxplatform.inference.contract import Constraint, InferenceRequest, Tool

LOGPROBS = "message.output_text.logprobs"


def read_text_config(raw: Any, param: str) -> dict[str, Any]:
    """``{format, verbosity}``; the format is flat here and nested in chat."""
    config = mapping(raw, param)
    form = config.get("format")
    constraint = None
    if form is not None:
        form = mapping(form, f"{param}.format")
        flat = form.get("type") == "json_schema"
        constraint = read_schema(form, f"{param}.format") if flat else read_response_format(form, f"{param}.format")
    return {"format": form or {"type": "text"}, "constraint": constraint}


def read_reasoning(raw: Any, param: str) -> str | None:
    effort = mapping(raw, param).get("effort")
    return None if effort is None else one_of(*EFFORTS)(effort, f"{param}.effort")


def read_include(raw: Any, param: str) -> list[str]:
    names: list[str] = list_of(text())(raw, param)
    return names


def read_conversation(raw: Any, param: str) -> str:
    if isinstance(raw, dict):
        raw, param = raw.get("id"), f"{param}.id"
    if not isinstance(raw, str) or not raw:
        raise wrong_type(param, "a conversation id", raw)
    return raw


def read_previous(raw: Any, param: str) -> str:
    if not isinstance(raw, str):
        raise wrong_type(param, "a string", raw)
    return raw


FIELDS = table(
    honoured("input", read_input, "text, messages, function calls and their outputs; reasoning items are dropped"),
    honoured("model", text(), "unknown names: see routing"),
    honoured("instructions", text(), "carried forward along a chain until replaced"),
    honoured("previous_response_id", read_previous),
    honoured("conversation", read_conversation),
    honoured("stream", boolean),
    honoured("store", boolean, "true when absent; false also keeps its words out of the history"),
    honoured("background", boolean, "needs store"),
    honoured("max_output_tokens", integer(1, MAX_COUNT)),
    honoured("max_tokens", integer(1, MAX_COUNT), "max_output_tokens wins"),
    honoured("tools", flat_tools, "functions; other types are left out and named in the header"),
    honoured("tool_choice", lambda raw, param: raw, "enforced by a grammar"),
    honoured("parallel_tool_calls", boolean, "false: calls after the first are dropped"),
    honoured("text", read_text_config, "format is enforced by a grammar; verbosity has no effect"),
    honoured("reasoning", read_reasoning, "effort; summary has no effect: reasoning is shown whole"),
    honoured("include", read_include, f"{LOGPROBS}; others have no effect"),
    honoured("top_logprobs", integer(0, MAX_TOP_LOGPROBS)),
    honoured("truncation", one_of("auto", "disabled"), "auto drops the oldest turns that do not fit"),
    honoured("metadata", metadata),
    honoured("stop", stop, "not OpenAI's"),
    honoured("chat_template_kwargs", mapping, "not OpenAI's"),
    honoured("guided_regex", guided("regex"), "not OpenAI's"),
    honoured("guided_choice", guided("choice"), "not OpenAI's"),
    honoured("structured_outputs", structured_outputs, "not OpenAI's"),
    honoured("adapter", text(MAX_NAME), "not OpenAI's"),
    honoured("memory", memory_tools.read_memory, "not OpenAI's; true or a vault's name: the model may look things up in it"),
    honoured("prompt_cache_key", text(MAX_NAME), "prompt-cache affinity"),
    honoured("session_id", text(MAX_NAME), "prompt-cache affinity; wins over prompt_cache_key"),
    *OPENAI_FIELDS,
    refused("prompt", "Prompt templates are not kept here."),
    refused("moderation", "This server moderates nothing."),
    ignored("stream_options", "there is no obfuscation"),
    ignored("max_tool_calls", "no built-in tools run here"),
    ignored("background_options", "no use for it"),
    ignored("context_management", "use truncation"),
    ignored("prompt_cache_options", "prompts are cached anyway"),
    ignored("prompt_cache_retention", "prompts are cached anyway"),
    ignored("safety_identifier", "no use for it"),
    ignored("user", "no use for it"),
    ignored("service_tier", "there is one tier"),
    ignored("access_programs", "no use for it"),
    ignored("image", "no use for it"),
)


@dataclass(frozen=True)
class ResponseAsk:
    """A checked body. ``echo`` is what the response object repeats; ``items`` is the new input only."""

    fields: Fields
    items: list[Item]
    tools: list[Tool]
    choice: tuple[str, list[str]]
    previous: str | None
    conversation: str | None
    instructions: str | None
    stream: bool
    store: bool
    background: bool
    echo: dict[str, Any]
    unused_tools: tuple[str, ...]
    memory: bool | str = False

    @property
    def truncates(self) -> bool:
        return bool(self.fields.get("truncation") == "auto")


def parse(body: Mapping[str, Any]) -> ResponseAsk:
    """Check a body; structural errors come before any lookup.

    Raises:
        Refusal: 400 naming the field.
    """
    fields = read_fields(body, FIELDS)
    if "input" not in fields:
        raise missing("input")
    if not fields["input"] and "previous_response_id" not in fields and "conversation" not in fields:
        raise wrong_value("input", "it must not be empty.")
    if "previous_response_id" in fields and "conversation" in fields:
        raise wrong_value("conversation", "it cannot be combined with 'previous_response_id'.")
    store = fields.get("store", True) and history.enabled()
    background = fields.get("background", False)
    if background and not store:
        raise wrong_value("background", "a background response must be stored.")
    tools, unused = _function_tools(fields.get("tools", []))
    remembers = fields.get("memory", False)
    if remembers:
        if background:
            raise wrong_value("memory", "it cannot be combined with 'background'.")
        tools = memory_tools.beside(tools)
    choice = read_tool_choice(fields.get("tool_choice"), tools)
    return ResponseAsk(
        fields=fields,
        items=fields["input"],
        tools=tools,
        choice=choice,
        previous=fields.get("previous_response_id"),
        conversation=fields.get("conversation"),
        instructions=fields.get("instructions"),
        stream=fields.get("stream", False),
        store=store,
        background=background,
        echo=_echo(fields, store),
        unused_tools=unused,
        memory=remembers,
    )


def _function_tools(raw: list[dict[str, Any]]) -> tuple[list[Tool], tuple[str, ...]]:
    tools, unused = [], []
    for index, tool in enumerate(raw):
        if tool["type"] == "function":
            tools.append(read_function(tool, f"tools[{index}]"))
        else:
            unused.append(f"tools.{tool['type']}")
    refuse_duplicates(tools, "tools")
    return tools, tuple(dict.fromkeys(unused))


def _echo(fields: Fields, store: bool) -> dict[str, Any]:
    """The request as the response object repeats it."""
    return {
        "background": fields.get("background", False),
        "instructions": fields.get("instructions"),
        "max_output_tokens": fields.get("max_output_tokens", fields.get("max_tokens")),
        "max_tool_calls": None,
        "metadata": fields.get("metadata", {}),
        "parallel_tool_calls": fields.get("parallel_tool_calls", True),
        "previous_response_id": fields.get("previous_response_id"),
        "conversation": {"id": fields["conversation"]} if "conversation" in fields else None,
        "reasoning": {"effort": fields.get("reasoning"), "summary": None},
        "service_tier": "default",
        "store": store,
        "temperature": fields.get("temperature", 1.0),
        "text": {"format": fields.get("text", {}).get("format", {"type": "text"})},
        "tool_choice": fields.get("tool_choice", "auto"),
        "tools": fields.get("tools", []),
        "top_logprobs": fields.get("top_logprobs", 0),
        "top_p": fields.get("top_p", 1.0),
        "truncation": fields.get("truncation", "disabled"),
        "user": None,
    }


def to_asked(ask: ResponseAsk, response_id: str, items: list[Item], instructions: str | None) -> Asked:
    """The contract request over the whole conversation.

    Raises:
        Refusal: the conversation does not hold together, or is empty.
    """
    fields = ask.fields
    messages = to_messages(items, instructions, new=len(ask.items))
    if not messages:
        raise wrong_value("input", "it must hold at least one message.")
    tools, choice, forced = limit_tools(ask.tools, *ask.choice)
    request = InferenceRequest(
        id=response_id,
        model="",
        kind="chat",
        messages=memory_tools.guided(messages) if ask.memory else messages,
        tools=tools,
        tool_choice=choice,
        template_kwargs=fields.get("chat_template_kwargs", {}),
        reasoning_effort=fields.get("reasoning"),
        sampling=sampling_of(fields),
        max_tokens=fields.get("max_output_tokens", fields.get("max_tokens")),
        stop=fields.get("stop", []),
        logprobs=_logprobs(fields),
        constraint=forced or _constraint(fields),
        adapter=fields.get("adapter"),
        session=fields.get("session_id", fields.get("prompt_cache_key")),
    )
    if ask.memory:
        memory_tools.refuse_fixed_form(request.constraint)
    return Asked(
        requests=(request,),
        model=fields.get("model"),
        stream=ask.stream,
        ignored=(*fields.ignored, *ask.unused_tools),
        one_call=not fields.get("parallel_tool_calls", True),
        store=ask.store,
        record=ask.store,
        extra=ask.echo,
        memory=ask.memory,
    )


def _logprobs(fields: Fields) -> int | None:
    wanted = LOGPROBS in fields.get("include", ()) or fields.get("top_logprobs", 0) > 0
    return fields.get("top_logprobs", 0) if wanted else None


def _constraint(fields: Fields) -> Constraint | None:
    given = [fields.get(name) for name in ("guided_regex", "guided_choice", "structured_outputs") if fields.get(name)]
    form: Constraint | None = fields.get("text", {}).get("constraint")
    if len(given) + (form is not None) > 1:
        raise wrong_value("text", "only one constraint on the output can be given.")
    return form or (given[0] if given else None)
