"""A messages body as a contract request. Blocks are checked by position; what a text model cannot take is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from mlxplatform.api import memory_tools
from mlxplatform.api.conversation import (
    check_calls_answered,
    checked_schema,
    compact,
    join_parts,
    media_refusal,
    picture_source,
    refuse_duplicates,
)
from mlxplatform.api.fields import (
    MAX_COUNT,
    SHOWN,
    array,
    boolean,
    honoured,
    ignored,
    integer,
    list_of,
    mapping,
    missing,
    number,
    one_of,
    read_fields,
    refused,
    table,
    text,
    wrong_type,
    wrong_value,
)
from mlxplatform.api.running import Asked
from mlxplatform.api.sampling import EXTRA_FIELDS, sampling_of
from mlxplatform.inference.client import new_id
from mlxplatform.inference.contract import Constraint, Image, InferenceRequest, Message, Refusal, Tool, ToolCall

ROLES = ("user", "assistant", "system")
#: Anthropic allows longer names than OpenAI; tools of MCP servers use them.
TOOL_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,128}\Z")
MAX_TOOLS = 1024
MAX_STOPS = 64
EFFORTS = ("low", "medium", "high", "xhigh", "max")
#: Blocks that servers of Anthropic make and clients send back; their text is all a model here can use.
_SERVER_BLOCKS = re.compile(r"^(server_tool_use|mcp_tool_use|[a-z_]+_tool_result)\Z")
#: Blocks that change what a conversation means and that nothing here can carry out.
REFUSED_BLOCKS = frozenset({"container_upload", "compaction", "tool_addition", "tool_removal", "mcp_tool_listing", "fallback"})


def read_system(raw: Any, param: str) -> str:
    """A string, or text blocks joined by newlines."""
    return join_parts(raw, param, separator="\n")


def read_messages(raw: Any, param: str) -> list[Message]:
    items = array(raw, param)
    if not items:
        raise Refusal(400, "empty_array", f"{param}: at least one message is required", param=param)
    messages: list[Message] = []
    for index, item in enumerate(items):
        messages += _turn(item, f"{param}.{index}")
    if not messages:
        raise Refusal(400, "invalid_value", f"{param}: all messages must have non-empty content", param=param)
    check_calls_answered(messages, param)
    return messages


def _turn(raw: Any, param: str) -> list[Message]:
    message = mapping(raw, param)
    role = message.get("role")
    if role is None:
        raise missing(f"{param}.role")
    one_of(*ROLES)(role, f"{param}.role")
    if message.get("content") is None:
        raise missing(f"{param}.content")
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else array(content, f"{param}.content")
    if role == "assistant":
        return _assistant(blocks, f"{param}.content")
    if not blocks or (isinstance(content, str) and not content):
        raise Refusal(400, "invalid_value", f"{param}.content: must not be empty", param=f"{param}.content")
    if role == "system":
        return [Message("system", join_parts(blocks, f"{param}.content", separator="\n"))]
    return _user(blocks, f"{param}.content")


def _assistant(blocks: list[Any], param: str) -> list[Message]:
    """One turn; none when it holds neither text nor calls (a cut answer replayed by the client)."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []

    def tool_use(block: Mapping[str, Any], here: str) -> None:
        name = text(empty=False)(_required(block, "name", here), f"{here}.name")
        identity = text(empty=False)(_required(block, "id", here), f"{here}.id")
        arguments = mapping(block.get("input", {}), f"{here}.input")
        calls.append(ToolCall(identity, name, compact(arguments)))

    _each_block(
        blocks,
        param,
        {
            "text": lambda block, here: texts.append(text()(_required(block, "text", here), f"{here}.text")),
            "thinking": lambda block, here: thoughts.append(text()(block.get("thinking", ""), f"{here}.thinking")),
            "redacted_thinking": lambda block, here: None,
            "tool_use": tool_use,
        },
        texts,
    )
    joined = "\n".join(part for part in texts if part)
    if not joined and not calls:
        return []
    return [Message("assistant", joined or None, reasoning="\n".join(thoughts) or None, tool_calls=calls or None)]


def _user(blocks: list[Any], param: str) -> list[Message]:
    """Tool results first, each a turn of its own, then the text."""
    texts: list[str] = []
    results: list[Message] = []
    images: list[Image] = []
    # Length of the joined text so far, and how many texts are in it.
    written = seen_texts = 0

    def plain(block: Mapping[str, Any], here: str) -> None:
        value = text()(_required(block, "text", here), f"{here}.text")
        if not value and len(blocks) == 1:
            raise Refusal(400, "invalid_value", f"{here}.text: text content blocks must be non-empty", param=f"{here}.text")
        texts.append(value)

    def tool_result(block: Mapping[str, Any], here: str) -> None:
        identity = text(empty=False)(_required(block, "tool_use_id", here), f"{here}.tool_use_id")
        seen: list[Image] = []
        said = _result_text(block, here, seen)
        results.append(Message("tool", said, tool_call_id=identity, images=seen or None))

    def picture(block: Mapping[str, Any], here: str) -> None:
        nonlocal seen_texts, written
        fresh = [len(part) for part in texts[seen_texts:] if part]
        written += sum(fresh) + len(fresh) - (1 if fresh and not written else 0)
        seen_texts = len(texts)
        images.append(Image(written, picture_source(block, here), here))

    _each_block(blocks, param, {"text": plain, "tool_result": tool_result, "image": picture}, texts)
    joined = "\n".join(part for part in texts if part)
    return [*results, Message("user", joined, images=images or None)] if joined or images or not results else results


def _result_text(block: Mapping[str, Any], param: str, images: list[Image]) -> str:
    content = block.get("content")
    result = "" if content is None else join_parts(content, f"{param}.content", separator="\n", images=images)
    failed = block.get("is_error")
    if failed is not None and boolean(failed, f"{param}.is_error"):
        return f"Error: {result}" if result else "Error"
    return result


BlockReader = Callable[[Mapping[str, Any], str], None]


def _each_block(blocks: list[Any], param: str, readers: Mapping[str, BlockReader], texts: list[str]) -> None:
    for index, item in enumerate(blocks):
        here = f"{param}.{index}"
        if isinstance(item, str):
            item = {"type": "text", "text": item}
        block = mapping(item, here)
        kind = block.get("type")
        if not isinstance(kind, str):
            raise missing(f"{here}.type")
        reader = readers.get(kind)
        if reader is not None:
            reader(block, here)
        elif kind in {"image", "document"}:
            raise media_refusal(kind, here)
        elif kind in REFUSED_BLOCKS:
            raise wrong_value(f"{here}.type", f"blocks of type '{kind}' are not supported here.")
        elif kind == "search_result":
            texts.append(_search_result(block, here))
        elif _SERVER_BLOCKS.match(kind):
            if isinstance(block.get("text"), str):
                texts.append(block["text"])
        else:
            names = ", ".join(f"'{name}'" for name in readers)
            raise wrong_value(f"{here}.type", f"'{kind[:SHOWN]}'. Supported values are: {names}.")


def _search_result(block: Mapping[str, Any], param: str) -> str:
    """Its title and text, which is all that a model without citations can use."""
    title = block.get("title")
    head = [] if title is None else [text()(title, f"{param}.title")]
    return "\n".join([*head, join_parts(_required(block, "content", param), f"{param}.content", separator="\n")])


def _required(block: Mapping[str, Any], key: str, param: str) -> Any:
    if block.get(key) is None:
        raise missing(f"{param}.{key}")
    return block[key]


def read_tools(raw: Any, param: str) -> list[Tool]:
    """Client tools. Tools that Anthropic's own servers run have no schema here and are left out."""
    items = array(raw, param)
    if len(items) > MAX_TOOLS:
        raise wrong_value(param, f"at most {MAX_TOOLS} tools.")
    tools = []
    for index, item in enumerate(items):
        here = f"{param}.{index}"
        tool = mapping(item, here)
        kind = tool.get("type", "custom")
        if kind not in (None, "custom"):
            text()(kind, f"{here}.type")
            continue
        name = text()(_required(tool, "name", here), f"{here}.name")
        if not TOOL_NAME.match(name):
            raise wrong_value(f"{here}.name", "use 1 to 128 letters, digits, underscores and dashes.")
        schema = mapping(_required(tool, "input_schema", here), f"{here}.input_schema")
        if schema.get("type", "object") != "object":
            raise wrong_value(f"{here}.input_schema", "a JSON Schema of type 'object'.")
        description, strict = tool.get("description"), tool.get("strict")
        tools.append(
            Tool(
                name,
                None if description is None else text()(description, f"{here}.description"),
                checked_schema(schema, f"{here}.input_schema"),
                None if strict is None else boolean(strict, f"{here}.strict"),
            )
        )
    refuse_duplicates(tools, param)
    return tools


def left_out_tools(raw: Any) -> tuple[str, ...]:
    """Checked tools that have no effect, by type, for the header."""
    kinds = [tool.get("type") for tool in raw or ()]
    return tuple(dict.fromkeys(f"tools.{kind}" for kind in kinds if kind not in (None, "custom")))


def read_thinking(raw: Any, param: str) -> bool | None:
    """Whether to think; None leaves it to the model. A budget is checked and has no effect of its own."""
    thinking = mapping(raw, param)
    kind = one_of("enabled", "disabled", "adaptive")(_required(thinking, "type", param), f"{param}.type")
    if thinking.get("budget_tokens") is not None:
        integer(1, MAX_COUNT)(thinking["budget_tokens"], f"{param}.budget_tokens")
    return {"enabled": True, "disabled": False}.get(kind)


def read_stops(raw: Any, param: str) -> list[str]:
    stops: list[str] = list_of(text(), most=MAX_STOPS)(raw, param)
    for index, stop in enumerate(stops):
        if not stop.strip():
            raise wrong_value(f"{param}.{index}", "each stop sequence must contain non-whitespace.")
    return stops


def read_output_config(raw: Any, param: str) -> dict[str, Any]:
    config = mapping(raw, param)
    found: dict[str, Any] = {}
    if config.get("effort") is not None:
        effort = one_of(*EFFORTS)(config["effort"], f"{param}.effort")
        found["effort"] = "xhigh" if effort == "max" else effort
    if config.get("format") is not None:
        found["format"] = read_format(config["format"], f"{param}.format")
    return found


def read_format(raw: Any, param: str) -> Constraint:
    output = mapping(raw, param)
    one_of("json_schema")(_required(output, "type", param), f"{param}.type")
    return Constraint("json_schema", mapping(_required(output, "schema", param), f"{param}.schema"))


COUNT_FIELDS = table(
    honoured("messages", read_messages, "text, tool_use, tool_result and thinking blocks", required=True),
    honoured("model", text(), "unknown names: see routing"),
    honoured("system", read_system, "text blocks are joined by newlines"),
    honoured("tools", read_tools, "client tools; server tools are left out"),
    honoured("tool_choice", lambda raw, param: raw, "enforced by a grammar"),
    honoured("thinking", read_thinking, "budget_tokens has no effect of its own"),
    honoured("output_config", read_output_config, "effort and format"),
    honoured("output_format", read_format, "enforced by a grammar"),
    honoured("memory", memory_tools.read_memory, "not Anthropic's; true or a vault's name: the model may look things up in it"),
    refused("mcp_servers", "This server connects to no MCP servers.", []),
    refused("container", "This server runs no containers."),
    ignored("cache_control", "prompts are cached anyway"),
    ignored("context_management", "no use for it"),
    ignored("betas", "no use for it"),
    ignored("speed", "there is one speed"),
    ignored("user_profile_id", "no use for it"),
    ignored("workspace_id", "keys belong to projects here"),
)
FIELDS = {
    **COUNT_FIELDS,
    **table(
        honoured("max_tokens", integer(1, MAX_COUNT), required=True),
        honoured("stream", boolean),
        honoured("stop_sequences", read_stops, "the one that ended the answer is reported"),
        honoured("temperature", number(0, 1), "0 is greedy"),
        honoured("top_p", number(0, 1)),
        *EXTRA_FIELDS,
        honoured("presence_penalty", number(-2, 2), "not Anthropic's"),
        honoured("frequency_penalty", number(-2, 2), "not Anthropic's"),
        honoured("seed", integer(0), "not Anthropic's"),
        honoured("adapter", text(256), "not Anthropic's"),
        ignored("metadata", "no use for it"),
        ignored("service_tier", "there is one tier"),
        ignored("inference_geo", "there is one place"),
        ignored("diagnostics", "no use for it"),
    ),
}


def parse(body: Mapping[str, Any], *, counting: bool = False) -> Asked:
    """The request a body asks for; without ``max_tokens`` and sampling when only tokens are to be counted.

    Raises:
        Refusal: 400 naming the field.
    """
    fields = read_fields(body, FIELDS if not counting else {**FIELDS, **_OPTIONAL_MAX})
    system = fields.get("system")
    messages = ([Message("system", system)] if system else []) + fields["messages"]
    tools = fields.get("tools", [])
    remembers = fields.get("memory", False)
    if remembers:
        tools, messages = memory_tools.beside(tools, "tools.{}"), memory_tools.guided(messages)
    choice, one_call = read_tool_choice(fields.get("tool_choice"), tools)
    config = fields.get("output_config", {})
    forced = Constraint("tool_call", choice[1] or [tool.name for tool in tools]) if choice[0] == "required" else None
    thinking = fields.get("thinking")
    request = InferenceRequest(
        id=new_id("msg_"),
        model="",
        kind="chat",
        messages=messages,
        tools=tools,
        tool_choice=choice[0],
        template_kwargs={} if thinking is None else {"enable_thinking": thinking},
        reasoning_effort=config.get("effort"),
        sampling=sampling_of(fields),
        max_tokens=fields.get("max_tokens"),
        stop=fields.get("stop_sequences", []),
        constraint=forced or config.get("format") or fields.get("output_format"),
        adapter=fields.get("adapter"),
    )
    if remembers:
        memory_tools.refuse_fixed_form(request.constraint)
    return Asked(
        requests=(request,),
        model=fields.get("model"),
        stream=fields.get("stream", False),
        ignored=(*fields.ignored, *left_out_tools(body.get("tools"))),
        one_call=one_call,
        memory=remembers,
    )


_OPTIONAL_MAX = table(honoured("max_tokens", integer(1, MAX_COUNT)))


def read_tool_choice(raw: Any, tools: list[Tool]) -> tuple[tuple[str, list[str]], bool]:
    """((mode, names), whether only one call is wanted)."""
    if raw is None:
        return ("auto", []), False
    choice = mapping(raw, "tool_choice")
    kind = one_of("auto", "any", "tool", "none")(_required(choice, "type", "tool_choice"), "tool_choice.type")
    single = choice.get("disable_parallel_tool_use")
    one_call = False if single is None else boolean(single, "tool_choice.disable_parallel_tool_use")
    if kind in {"auto", "none"}:
        return (kind, []), one_call
    if not tools:
        raise wrong_value("tool_choice", f"'{kind}' needs at least one tool in 'tools'.")
    if kind == "any":
        return ("required", []), one_call
    name = _required(choice, "name", "tool_choice")
    if not isinstance(name, str):
        raise wrong_type("tool_choice.name", "a string", name)
    if name not in {tool.name for tool in tools}:
        raise wrong_value("tool_choice", f"there is no tool '{name[:SHOWN]}' in 'tools'.")
    return ("required", [name]), one_call
