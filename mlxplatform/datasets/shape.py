"""Whether a row is what its format promises. The one place that says what a trainable row looks like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mlxplatform.datasets.convert import keys_of, kind

ROLES = ("system", "user", "assistant", "tool")

#: Format by the keys a row must have. Order matters: the first that fits names the row.
FORMATS: dict[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "dpo": ("prompt", "chosen", "rejected"),
    "prompt_completion": ("prompt", "completion"),
    "text": ("text",),
}

#: A character that no database's text and no C library takes; in files it is what is left of a wrong encoding.
NUL, NUL_INSIDE = "\x00", "contains a NUL character (\\u0000); remove it"


def format_of(row: Mapping[str, Any]) -> str:
    """The row's format by its keys, or ""."""
    return next((name for name, keys in FORMATS.items() if all(key in row for key in keys)), "")


def problem(row: Any, *, check: str = "full") -> tuple[str, str]:
    """(field, sentence) for the first thing wrong with a row, or ("", "").

    ``check`` "answers_optional" allows empty answers, "types" also any order of turns.
    """
    answers = check == "full"
    if not isinstance(row, dict):
        return "row", f"expected an object, got {kind(row)}"
    name = format_of(row)
    if not name:
        return "row", f"keys {keys_of(row)} are no known format; known: {known_formats()}"
    if name == "messages":
        field, why = _messages(row["messages"], check)
        return (field, why) if why else _tools(row.get("tools"))
    for key in FORMATS[name]:
        value = row[key]
        if name == "dpo" and isinstance(value, list):
            field, why = _messages(value, "types")
            if why:
                return f"{key}{field.removeprefix('messages')}", why
        elif not isinstance(value, str):
            return key, f"must be text, got {kind(value)}"
        elif NUL in value:
            return key, NUL_INSIDE
        if answers and key != "prompt" and not (value.strip() if isinstance(value, str) else value):
            return key, "is empty"
    if name == "dpo" and row["chosen"] == row["rejected"]:
        return "rejected", "is the same as chosen, so that nothing is preferred"
    return "", ""


def known_formats() -> str:
    return "; ".join(" + ".join(keys) for keys in FORMATS.values())


def _messages(messages: Any, check: str) -> tuple[str, str]:
    if not isinstance(messages, list) or not messages:
        got = "" if isinstance(messages, list) else f", got {kind(messages)}"
        return "messages", f"must be a list with at least one message{got}"
    for index, message in enumerate(messages):
        field = f"messages[{index}]"
        if not isinstance(message, dict):
            return field, f"must be an object, got {kind(message)}"
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            return f"{field}.role", f"must be one of {', '.join(ROLES)}, got {str(role)[:40]!r}"
        if message.get("tool_calls") is not None:
            if role != "assistant":
                return f"{field}.tool_calls", f"only the assistant calls tools, not {role}"
            where, why = _calls(message["tool_calls"])
            if why:
                return f"{field}.tool_calls{where}", why
            if content is None:
                continue
        if not isinstance(content, str):
            return f"{field}.content", "is missing" if "content" not in message else f"must be text, got {kind(content)}"
        if NUL in content:
            return f"{field}.content", NUL_INSIDE
        weight = message.get("weight")
        if weight is not None and (isinstance(weight, bool) or weight not in (0, 1)):
            return f"{field}.weight", f"must be 0 or 1, got {str(weight)[:40]}"
    return ("", "") if check == "types" else _order(messages, check == "full")


def _tools(tools: Any) -> tuple[str, str]:
    """(place, sentence) for the first thing wrong with the tools a conversation had."""
    if tools is None:
        return "", ""
    if not isinstance(tools, list):
        return "tools", f"must be a list of functions, got {kind(tools)}"
    for index, tool in enumerate(tools):
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            return f"tools[{index}]", "must be an object with function.name"
    return "", ""


def _calls(calls: Any) -> tuple[str, str]:
    """(place, sentence) for the first thing wrong with a turn's tool calls."""
    if not isinstance(calls, list) or not calls:
        return "", "must be a list with at least one call"
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            return f"[{index}]", "must be an object with function.name"
        arguments = function.get("arguments", "")
        if not isinstance(arguments, str | dict):
            return f"[{index}].function.arguments", f"must be JSON text or an object, got {kind(arguments)}"
        if isinstance(arguments, str) and arguments.strip() and not _is_object(arguments):
            return f"[{index}].function.arguments", f"is no JSON object: {arguments[:40]!r}"
    return "", ""


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


def _order(messages: list[dict[str, Any]], answers: bool) -> tuple[str, str]:
    roles = [message["role"] for message in messages]
    spoken = [role for role in roles if role != "system"]
    if "system" in roles[1:]:
        return f"messages[{roles.index('system', 1)}].role", "a system message must come first"
    if not spoken or "user" not in spoken:
        return "messages", "has no user message"
    if spoken[0] != "user":
        return f"messages[{len(roles) - len(spoken)}].role", f"the first turn must be the user's, got {spoken[0]}"
    if "assistant" not in spoken:
        return "messages", "has no assistant message"
    if roles[-1] != "assistant":
        return f"messages[{len(roles) - 1}].role", f"the last turn must be the assistant's, got {roles[-1]}"
    for index, message in enumerate(messages):
        if message["role"] == "tool" and not _follows_a_call(messages, index):
            return f"messages[{index}].role", "a tool's result must follow the assistant's call of it"
        if message["role"] == "tool" and not _answers_a_call(messages, index):
            return f"messages[{index}].tool_call_id", "is the id of no call that the assistant has just made"
        if not answers or message["role"] != "assistant" or message.get("tool_calls") or message.get("weight") == 0:
            continue
        if not message["content"].strip():
            return f"messages[{index}].content", "the assistant's answer is empty"
    return "", ""


def _caller(messages: list[dict[str, Any]], index: int) -> dict[str, Any] | None:
    """The turn before the tools' results that this one is among."""
    before = index - 1
    while before >= 0 and messages[before]["role"] == "tool":
        before -= 1
    return messages[before] if before >= 0 else None


def _follows_a_call(messages: list[dict[str, Any]], index: int) -> bool:
    caller = _caller(messages, index)
    return caller is not None and bool(caller.get("tool_calls"))


def _answers_a_call(messages: list[dict[str, Any]], index: int) -> bool:
    """Whether a result's id is one of the calls'; where either has none, their order tells."""
    named = messages[index].get("tool_call_id")
    caller = _caller(messages, index)
    ids = [call.get("id") for call in caller["tool_calls"]] if caller else []
    return named is None or not all(ids) or named in ids
