"""Whether a row is what its format promises. The one place that says what a trainable row looks like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxplatform.datasets.convert import kind

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
        return "row", f"keys {', '.join(sorted(map(str, row))[:8]) or '(none)'} are no known format; known: {known_formats()}"
    if name == "messages":
        return _messages(row["messages"], check)
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
        if answers and key != "prompt" and not value:
            return key, "is empty"
    return "", ""


def known_formats() -> str:
    return "; ".join(" + ".join(keys) for keys in FORMATS.values())


def _messages(messages: Any, check: str) -> tuple[str, str]:
    if not isinstance(messages, list) or not messages:
        return "messages", "must be a list with at least one message"
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


def _calls(calls: Any) -> tuple[str, str]:
    """(place, sentence) for the first thing wrong with a turn's tool calls."""
    if not isinstance(calls, list) or not calls:
        return "", "must be a list with at least one call"
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            return f"[{index}]", "must be an object with function.name"
        if not isinstance(function.get("arguments", ""), str | dict):
            return f"[{index}].function.arguments", f"must be JSON text or an object, got {kind(function['arguments'])}"
    return "", ""


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
        if not answers or message["role"] != "assistant" or message.get("tool_calls") or message.get("weight") == 0:
            continue
        if not message["content"].strip():
            return f"messages[{index}].content", "the assistant's answer is empty"
    return "", ""


def _follows_a_call(messages: list[dict[str, Any]], index: int) -> bool:
    before = index - 1
    while before >= 0 and messages[before]["role"] == "tool":
        before -= 1
    return before >= 0 and bool(messages[before].get("tool_calls"))
