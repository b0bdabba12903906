"""Pieces of OpenAI-shaped conversations that more than one protocol reads: text parts, tools, constraints.

Everything is checked by position, so that a refusal names ``messages[3].content[1]`` rather than "the body".
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import msgspec

from mlxplatform.api.fields import SHOWN, array, boolean, list_of, mapping, missing, one_of, text, wrong_type, wrong_value
from mlxplatform.inference.contract import Constraint, Image, Message, Refusal, Tool, ToolCall

#: Content part types that are not text and need a model with that sense.
MEDIA_PARTS = {
    "image_url": "images",
    "image": "images",
    "input_image": "images",
    "input_audio": "audio",
    "audio": "audio",
    "audio_url": "audio",
    "video_url": "video",
    "video": "video",
    "file": "files",
    "input_file": "files",
    "document": "documents",
}
TEXT_PARTS = {"text", "input_text", "output_text", "refusal"}
TOOL_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}\Z")
MAX_TOOLS = 1024
#: Names listed in a refusal at most.
MAX_SHOWN = 10

_dumps = msgspec.json.Encoder().encode


def compact(value: Any) -> str:
    """JSON text of a value."""
    return _dumps(value).decode()


#: Content parts that are pictures.
PICTURES = frozenset(kind for kind, sense in MEDIA_PARTS.items() if sense == "images")


def join_parts(raw: Any, param: str, *, separator: str = "", images: list[Image] | None = None) -> str:
    """Text of a string or a list of text parts, joined in order.

    With ``images``, pictures among the parts are added to it with their places in the text, for whoever knows the model
    to take or to refuse.

    Raises:
        Refusal: a part that is not text: media needs a model with that sense, and dropping it would let the model
            answer about something it never saw.
    """
    if isinstance(raw, str):
        return raw
    if not isinstance(raw, list):
        raise wrong_type(param, "a string or an array of content parts", raw)
    texts: list[str] = []
    written = 0
    for index, part in enumerate(raw):
        here = f"{param}[{index}]"
        if images is not None and _is_picture(part):
            images.append(Image(written, picture_source(part, here), here))
        else:
            text_of = _part_text(part, here)
            written += len(text_of) + (len(separator) if texts else 0)
            texts.append(text_of)
    return separator.join(texts)


def _is_picture(part: Any) -> bool:
    kind = part.get("type") if isinstance(part, dict) else None
    return isinstance(kind, str) and kind in PICTURES


def picture_source(part: Any, param: str) -> str:
    """The URL or the data of a picture, in the shape of any protocol.

    Raises:
        Refusal: 400 naming what is missing.
    """
    match part:
        case {"source": source}:  # Anthropic's
            source = mapping(source, f"{param}.source")
            kind = one_of("base64", "url")(source.get("type"), f"{param}.source.type")
            key = "data" if kind == "base64" else "url"
            return given_source(source.get(key), f"{param}.source.{key}")
        case {"image_url": {"url": url}}:
            return given_source(url, f"{param}.image_url.url")
        case {"image_url": url}:
            return given_source(url, f"{param}.image_url")
        case {"file_id": str()}:
            raise wrong_value(f"{param}.file_id", "pictures are sent with the request; send 'image_url'.")
        case {"image": url}:
            return given_source(url, f"{param}.image")
    raise missing(f"{param}.source" if part.get("type") == "image" else f"{param}.image_url")


def given_source(raw: Any, param: str) -> str:
    """A URL or base64 that is not empty."""
    return str(text(empty=False)(raw, param))


def _part_text(part: Any, param: str) -> str:
    if isinstance(part, str):
        return part
    kind = mapping(part, param).get("type", "text" if "text" in part else None)
    if not isinstance(kind, str):
        raise missing(f"{param}.type")
    if kind in TEXT_PARTS:
        key = "refusal" if kind == "refusal" else "text"
        if key not in part:
            raise missing(f"{param}.{key}")
        return text()(part[key], f"{param}.{key}")
    if kind in MEDIA_PARTS:
        raise media_refusal(kind, param)
    raise wrong_value(f"{param}.type", f"'{kind[:SHOWN]}'. Supported values are: 'text'.")


def media_refusal(kind: str, param: str) -> Refusal:
    return Refusal(400, "unsupported_content", f"The model takes no {MEDIA_PARTS[kind]}; it reads text only.", param=param)


def read_tools(raw: Any, param: str = "tools") -> list[Tool]:
    """Chat-style function tools ``{type, function: {...}}``."""
    items = array(raw, param)
    if len(items) > MAX_TOOLS:
        raise Refusal(400, "array_above_max_length", f"Invalid '{param}': at most {MAX_TOOLS} tools.", param=param)
    tools: list[Tool] = []
    for index, item in enumerate(items):
        here = f"{param}[{index}]"
        if mapping(item, here).get("type") is None:
            raise missing(f"{here}.type")
        one_of("function")(item["type"], f"{here}.type")
        if "function" not in item:
            raise missing(f"{here}.function")
        tools.append(read_function(item["function"], f"{here}.function"))
    refuse_duplicates(tools, param)
    return tools


def read_function(raw: Any, param: str, *, schema_key: str = "parameters") -> Tool:
    function = mapping(raw, param)
    if "name" not in function:
        raise missing(f"{param}.name")
    name = text()(function["name"], f"{param}.name")
    if not TOOL_NAME.match(name):
        raise wrong_value(f"{param}.name", "use 1 to 64 letters, digits, underscores and dashes.")
    description = function.get("description")
    parameters = function.get(schema_key)
    strict = function.get("strict")
    return Tool(
        name=name,
        description=None if description is None else text()(description, f"{param}.description"),
        parameters=None if parameters is None else _object_schema(parameters, f"{param}.{schema_key}"),
        strict=None if strict is None else boolean(strict, f"{param}.strict"),
    )


def _object_schema(raw: Any, param: str) -> dict[str, Any]:
    schema = mapping(raw, param)
    if schema.get("type", "object") != "object":
        raise wrong_value(param, "a function's parameters are a JSON Schema of type 'object'.")
    return checked_schema(schema, param)


def checked_schema(schema: dict[str, Any], param: str) -> dict[str, Any]:
    """The schema of a function's arguments, whose parts that layouts of calls read are what they must be."""
    schema = {key: value for key, value in schema.items() if value is not None or key not in ("properties", "required")}
    mapping(schema.get("properties", {}), f"{param}.properties")
    list_of(text())(schema.get("required", []), f"{param}.required")
    return schema


def refuse_duplicates(tools: list[Tool], param: str) -> None:
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            raise wrong_value(f"{param}[{index}]", f"two tools are called '{tool.name}'.")
        seen.add(tool.name)


def read_tool_choice(raw: Any, tools: list[Tool], param: str = "tool_choice") -> tuple[str, list[str]]:
    """Mode ("auto", "none", "required") and the names it is limited to (empty: any).

    Understands the chat form (``{type, function: {name}}``), the flat form of Responses (``{type, name}``) and
    ``allowed_tools`` of both.
    """
    names = frozenset(tool.name for tool in tools)
    if raw is None:
        return "auto", []
    if isinstance(raw, str):
        mode = one_of("none", "auto", "required")(raw, param)
        if mode == "required" and not tools:
            raise wrong_value(param, "'required' needs at least one tool in 'tools'.")
        return mode, []
    choice = mapping(raw, param)
    kind = choice.get("type")
    if kind == "function":
        inner = choice.get("function", choice)
        return "required", [_known_tool(mapping(inner, f"{param}.function").get("name"), names, param)]
    if kind == "allowed_tools":
        allowed = mapping(choice.get("allowed_tools", choice), f"{param}.allowed_tools")
        mode = one_of("auto", "required")(allowed.get("mode", "auto"), f"{param}.mode")
        wanted = array(allowed.get("tools"), f"{param}.tools")
        return mode, [_known_tool(_tool_name(item, f"{param}.tools[{index}]"), names, param) for index, item in enumerate(wanted)]
    raise wrong_value(f"{param}.type", "Supported values are: 'function', 'allowed_tools'.")


def _tool_name(raw: Any, param: str) -> Any:
    """What an entry of ``allowed_tools`` is called, in the chat form or the flat one."""
    item = mapping(raw, param)
    return mapping(item.get("function", item), f"{param}.function").get("name")


def _known_tool(name: Any, names: frozenset[str], param: str) -> str:
    if not isinstance(name, str):
        raise missing(f"{param}.name")
    if name not in names:
        raise wrong_value(param, f"there is no tool '{name[:SHOWN]}' in 'tools'.")
    return name


def limit_tools(tools: list[Tool], mode: str, only: list[str]) -> tuple[list[Tool], str, Constraint | None]:
    """Tools to offer, the contract's tool_choice, and the grammar that enforces it."""
    offered = [tool for tool in tools if tool.name in only] if only and mode == "auto" else tools
    if mode == "required":
        return offered, "required", Constraint("tool_call", only or [tool.name for tool in tools])
    return offered, mode, None


def read_tool_calls(raw: Any, param: str) -> list[ToolCall]:
    """The calls of an assistant turn in history; arguments may be a JSON string (the wire form) or an object."""
    calls: list[ToolCall] = []
    for index, item in enumerate(array(raw, param)):
        here = f"{param}[{index}]"
        call = mapping(item, here)
        if call.get("type") is not None:
            one_of("function")(call["type"], f"{here}.type")
        function = mapping(call.get("function"), f"{here}.function")
        for key, holder in (("id", call), ("name", function)):
            if not isinstance(holder.get(key), str) or not holder[key]:
                raise missing(f"{here}.{key if key == 'id' else 'function.name'}")
        calls.append(
            ToolCall(call["id"], function["name"], arguments_text(function.get("arguments"), f"{here}.function.arguments"))
        )
    return calls


def arguments_text(raw: Any, param: str) -> str:
    if raw is None or raw == "":
        return "{}"
    if isinstance(raw, dict):
        return compact(raw)
    if isinstance(raw, str):
        return raw
    raise wrong_type(param, "a JSON string", raw)


def check_calls_answered(messages: list[Message], param: str = "messages") -> None:
    """Every call of an assistant turn has its answer before the next turn.

    Raises:
        Refusal: 400 naming the ids without one.
    """
    open_calls: dict[str, None] = {}
    asked_at = 0
    for index, message in enumerate(messages):
        if message.role == "tool":
            open_calls.pop(message.tool_call_id or "", None)
            continue
        _refuse_open(open_calls, asked_at, param)
        if message.tool_calls:
            asked_at = index
            open_calls = dict.fromkeys(call.id for call in message.tool_calls)
    _refuse_open(open_calls, asked_at, param)


def _refuse_open(open_calls: dict[str, None], asked_at: int, param: str) -> None:
    if open_calls:
        names = ", ".join(f"'{name[:SHOWN]}'" for name in itertools.islice(open_calls, MAX_SHOWN))
        names += ", ..." if len(open_calls) > MAX_SHOWN else ""
        raise Refusal(
            400,
            "missing_tool_result",
            f"The tool calls of {param}[{asked_at}] must each be followed by a result. Missing: {names}.",
            param=f"{param}[{asked_at}]",
        )


def read_schema(raw: Any, param: str) -> Constraint:
    """The ``json_schema`` object of a response format."""
    wrapper = mapping(raw, param)
    if "name" not in wrapper:
        raise missing(f"{param}.name")
    if not TOOL_NAME.match(text()(wrapper["name"], f"{param}.name")):
        raise wrong_value(f"{param}.name", "use 1 to 64 letters, digits, underscores and dashes.")
    schema = wrapper.get("schema")
    if schema is None:
        raise missing(f"{param}.schema")
    if not isinstance(schema, (dict, bool)):
        raise wrong_type(f"{param}.schema", "a JSON Schema object", schema)
    for key, check in (("strict", boolean), ("description", text())):
        if wrapper.get(key) is not None:
            check(wrapper[key], f"{param}.{key}")
    return Constraint("json_schema", schema)


def read_response_format(raw: Any, param: str) -> Constraint | None:
    kind = mapping(raw, param).get("type")
    if kind is None:
        raise missing(f"{param}.type")
    one_of("text", "json_object", "json_schema")(kind, f"{param}.type")
    if kind == "json_object":
        # Other servers take a schema here; one that was dropped would look as if it had been followed.
        schema = raw.get("schema")
        if schema is None:
            return Constraint("json_object")
        return Constraint("json_schema", mapping(schema, f"{param}.schema"))
    if kind == "json_schema":
        if "json_schema" not in raw:
            raise missing(f"{param}.json_schema")
        return read_schema(raw["json_schema"], f"{param}.json_schema")
    return None


def guided(kind: str) -> Any:
    """Check for one of the ``guided_*`` fields: a value that becomes a constraint."""

    def check(raw: Any, param: str) -> Constraint:
        if kind == "choice":
            choices = array(raw, param)
            if not choices or not all(isinstance(choice, str) and choice for choice in choices):
                raise wrong_value(param, "a non-empty list of non-empty strings.")
            return Constraint("choice", choices)
        if kind == "json_schema":
            if not isinstance(raw, (dict, bool)):
                raise wrong_type(param, "a JSON Schema object", raw)
            return Constraint("json_schema", raw)
        return Constraint(kind, text(empty=False)(raw, param))  # type: ignore[arg-type]

    return check


def structured_outputs(raw: Any, param: str) -> Constraint | None:
    """``{json | regex | choice | grammar: ...}``, exactly one of them."""
    kinds = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar"}
    given = {key: value for key, value in mapping(raw, param).items() if value is not None}
    if not given:
        return None
    if len(given) != 1 or next(iter(given)) not in kinds:
        raise wrong_value(param, "exactly one of 'json', 'regex', 'choice', 'grammar'.")
    key, value = next(iter(given.items()))
    result: Constraint = guided(kinds[key])(value, f"{param}.{key}")
    return result
