"""Input and output items of the Responses API as turns of a conversation.

Items are kept as JSON (that is what is stored and listed) and become contract messages only to ask the model. All
system and developer text is one leading system message, because strict templates refuse two. Reasoning items are
accepted and dropped: a model fed its old reasoning repeats it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mlxplatform.api.conversation import arguments_text, check_calls_answered, compact, join_parts
from mlxplatform.api.fields import SHOWN, array, mapping, missing, one_of, text, wrong_type, wrong_value
from mlxplatform.inference.contract import Image, Message, ToolCall

ROLES = ("user", "assistant", "system", "developer")
SUPPORTED = (
    "message",
    "function_call",
    "function_call_output",
    "reasoning",
    "custom_tool_call",
    "custom_tool_call_output",
    "item_reference",
)
#: Items of tools that OpenAI's servers run, of which nothing here could make sense.
REFUSED = (
    "file_search_call",
    "computer_call",
    "computer_call_output",
    "web_search_call",
    "tool_search_call",
    "tool_search_output",
    "additional_tools",
    "configuration_update",
    "compaction",
    "compaction_trigger",
    "image_generation_call",
    "code_interpreter_call",
    "local_shell_call",
    "local_shell_call_output",
    "shell_call",
    "shell_call_output",
    "apply_patch_call",
    "apply_patch_call_output",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "program",
    "program_output",
)
#: Ids of the items we made: prefix, the digits of the response they are of, position.
_OWN_ITEM = re.compile(r"^[a-z]+_([0-9a-f]{32})[0-9]{2,}\Z")

Item = dict[str, Any]


def read_input(raw: Any, param: str) -> list[Item]:
    """The items of an ``input``: a string is one user message; ``message`` is the implied type of what has a role."""
    if isinstance(raw, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": raw}]}]
    if not isinstance(raw, list):
        raise wrong_type(param, "a string or an array of input items", raw)
    return [_item(item, f"{param}[{index}]") for index, item in enumerate(raw)]


def _item(raw: Any, param: str) -> Item:
    if not isinstance(raw, dict):
        refusal = wrong_type(param, "an object", raw)
        refusal.param = param.partition("[")[0]
        raise refusal
    kind = raw.get("type")
    if kind is None:
        if "role" not in raw and "id" not in raw:
            raise missing(f"{param}.type")
        kind = "message" if "role" in raw else "item_reference"
    if not isinstance(kind, str) or kind not in SUPPORTED:
        shown = kind[:SHOWN] if isinstance(kind, str) else "that"
        names = ", ".join(f"'{name}'" for name in SUPPORTED)
        refusal = wrong_value(param, f"items of type '{shown}' are not supported here. Supported types are: {names}.")
        refusal.param = param.partition("[")[0]
        raise refusal
    item = {**raw, "type": kind}
    check_item(item, param)
    return item


def check_item(item: Item, param: str) -> None:
    """Turn the item once, for its refusals."""
    match item["type"]:
        case "message":
            one_of(*ROLES)(item.get("role"), f"{param}.role")
            if item.get("content") is None:
                raise missing(f"{param}.content")
            seen: list[Image] | None = [] if item["role"] == "user" else None
            join_parts(item["content"], f"{param}.content", images=seen)
        case "function_call" | "custom_tool_call":
            for key in ("call_id", "name"):
                text(empty=False)(_required(item, key, param), f"{param}.{key}")
            if item["type"] == "function_call":
                arguments_text(item.get("arguments"), f"{param}.arguments")
        case "item_reference":
            text(empty=False)(_required(item, "id", param), f"{param}.id")
        case "function_call_output" | "custom_tool_call_output":
            text(empty=False)(_required(item, "call_id", param), f"{param}.call_id")
            output_text(_required(item, "output", param), f"{param}.output", [])


def refuse_references(items: Sequence[Item], param: str) -> None:
    """For places in which no stored response can be looked up.

    Raises:
        Refusal: 400 naming the reference.
    """
    for index, item in enumerate(items):
        if item["type"] == "item_reference":
            raise wrong_value(f"{param}[{index}]", "a reference to a stored item is not possible here; send the item itself.")


def response_of(item_id: str) -> str | None:
    """Id of the response that an item of ours belongs to."""
    found = _OWN_ITEM.match(item_id)
    return f"resp_{found[1]}" if found else None


def _required(item: Item, key: str, param: str) -> Any:
    if item.get(key) is None:
        raise missing(f"{param}.{key}")
    return item[key]


def output_text(raw: Any, param: str, images: list[Image]) -> str:
    """Text of a tool's output: a string, text and picture parts, or any JSON value as text."""
    if isinstance(raw, str):
        return raw
    if isinstance(raw, list) and all(isinstance(part, dict) and "type" in part for part in raw):
        return join_parts(raw, param, images=images)
    return compact(raw)


def to_messages(items: Sequence[Item], instructions: str | None, param: str = "input", new: int | None = None) -> list[Message]:
    """The conversation of checked items, of which the last ``new`` came with this request and have a place in it.

    Raises:
        Refusal: a call without its output.
    """
    system = [instructions] if instructions else []
    turns: list[Message] = []
    first = len(items) - (len(items) if new is None else new)
    for index, item in enumerate(items):
        here = f"{param}[{index - first}]" if index >= first else param
        images: list[Image] = []
        match item["type"]:
            case "message":
                seen = images if item["role"] == "user" else None
                content = join_parts(item["content"], f"{here}.content", images=seen)
                if item["role"] in {"system", "developer"}:
                    system.append(content)
                else:
                    turns.append(Message(item["role"], content, images=images or None))
            case "function_call" | "custom_tool_call":
                _add_call(turns, item)
            case "function_call_output" | "custom_tool_call_output":
                said = output_text(item["output"], f"{here}.output", images)
                turns.append(Message("tool", said, tool_call_id=item["call_id"], images=images or None))
    check_calls_answered(turns, param)
    head = [Message("system", "\n\n".join(part for part in system if part))] if any(system) else []
    return head + turns


def _add_call(turns: list[Message], item: Item) -> None:
    """Calls in a row, and the assistant text before them, are one turn."""
    if item["type"] == "function_call":
        arguments = arguments_text(item.get("arguments"), "input")
    else:
        arguments = compact({"input": item.get("input", "")})
    call = ToolCall(item["call_id"], item["name"], arguments)
    last = turns[-1] if turns else None
    if last is not None and last.role == "assistant" and last.tool_calls:
        # In place: copying what is there for each of many calls would take a time that grows with their square.
        last.tool_calls.append(call)
    elif last is not None and last.role == "assistant":
        turns[-1] = Message("assistant", last.content, tool_calls=[call])
    else:
        turns.append(Message("assistant", None, tool_calls=[call]))


def carried(output: Sequence[Item]) -> list[Item]:
    """The output items that later turns see."""
    return [item for item in output if item.get("type") in {"message", "function_call"}]


def listed(items: Sequence[Item]) -> list[Item]:
    """Items as the input_items list shows them: each with an id."""
    shown: list[Item] = []
    for index, item in enumerate(items):
        content = item.get("content")
        if item["type"] == "message" and isinstance(content, str):
            kind = "output_text" if item["role"] == "assistant" else "input_text"
            item = {**item, "content": [{"type": kind, "text": content}]}
        shown.append({"id": item.get("id") or f"item_{index}", "status": "completed", **item})
    return shown


def flat_tools(raw: Any, param: str) -> list[dict[str, Any]]:
    """Every tool an object with a type; which of them can be used is decided by the caller."""
    tools = []
    for index, item in enumerate(array(raw, param)):
        tool = mapping(item, f"{param}[{index}]")
        if not isinstance(tool.get("type"), str):
            raise missing(f"{param}[{index}].type")
        tools.append(tool)
    return tools
