"""Whether a row is what its format promises. The one place that says what a trainable row looks like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ROLES = ("system", "user", "assistant", "tool")

#: Format by the keys a row must have. Order matters: the first that fits names the row.
FORMATS: dict[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "dpo": ("prompt", "chosen", "rejected"),
    "prompt_completion": ("prompt", "completion"),
    "text": ("text",),
}


def format_of(row: Mapping[str, Any]) -> str:
    """The row's format by its keys, or ""."""
    return next((name for name, keys in FORMATS.items() if all(key in row for key in keys)), "")


def problem(row: Any, *, check: str = "full") -> tuple[str, str]:
    """(field, sentence) for the first thing wrong with a row, or ("", "").

    ``check`` "answers_optional" allows empty answers, "types" also any order of turns.
    """
    answers = check == "full"
    if not isinstance(row, dict):
        return "row", f"expected an object, got {type(row).__name__}"
    name = format_of(row)
    if not name:
        return "row", f"keys {', '.join(sorted(map(str, row))[:8]) or '(none)'} are no known format; known: {known_formats()}"
    if name == "messages":
        return _messages(row["messages"], check)
    for key in FORMATS[name]:
        value = row[key]
        if not isinstance(value, str) and not (name == "dpo" and isinstance(value, list)):
            return key, f"must be text, got {_kind(value)}"
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
            return field, f"must be an object, got {_kind(message)}"
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            return f"{field}.role", f"must be one of {', '.join(ROLES)}, got {str(role)[:40]!r}"
        if content is None and role == "assistant" and message.get("tool_calls"):
            continue
        if not isinstance(content, str):
            return f"{field}.content", "is missing" if "content" not in message else f"must be text, got {_kind(content)}"
        weight = message.get("weight")
        if weight is not None and (isinstance(weight, bool) or weight not in (0, 1)):
            return f"{field}.weight", f"must be 0 or 1, got {str(weight)[:40]}"
    return ("", "") if check == "types" else _order(messages, check == "full")


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
    last = messages[-1]
    if answers and not (last.get("content") or "").strip() and not last.get("tool_calls"):
        return f"messages[{len(messages) - 1}].content", "the assistant's answer is empty"
    return "", ""


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true/false"
    if isinstance(value, int | float):
        return "a number"
    return {"str": "text", "list": "a list", "dict": "an object"}.get(type(value).__name__, type(value).__name__)
