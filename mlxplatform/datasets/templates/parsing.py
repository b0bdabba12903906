"""Reading lists out of what a model wrote. Pure; tolerant of prose, fences and cut-off answers."""

from __future__ import annotations

import json
import re
from typing import Any

from mlxplatform.inference.contract import Constraint

_BULLET = re.compile(r"^\s*(?:\d{1,3}\s*[.):]|[-*•‣])\s*(.+?)\s*$")
#: A number that a model puts before an item although the list has its order: "1. Name a river".
_NUMBERED = re.compile(r"^\s*\d{1,3}[.)]\s+(?=\S)")
_QUESTION_MARKS = "?\uff1f\u061f"
_PAIRED = frozenset({('"', '"'), ("“", "”"), ("„", "“"), ("«", "»"), ("'", "'")})
_QUOTES = "\"'“”‘’`"
#: Brackets with nothing but text between them, for lists whose quotes do not match.
_BRACKETS = re.compile(r"\[[^\[\]]*\]")
_OPEN = {"[": "]", "{": "}"}


def balanced_spans(text: str, opening: str) -> list[str]:
    """Every outermost span from ``opening`` to its partner, quotes respected; later starts when one never closes."""
    closing = _OPEN[opening]
    spans: list[str] = []
    start = 0
    while (start := text.find(opening, start)) >= 0:
        end = _close(text, start, opening, closing)
        if end is None:
            start += 1
            continue
        spans.append(text[start : end + 1])
        start = end + 1
    return spans


def _close(text: str, start: int, opening: str, closing: str) -> int | None:
    depth, quoted, escaped = 0, False, False
    for at in range(start, len(text)):
        char = text[at]
        if quoted:
            quoted = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            quoted = True
        elif char == opening:
            depth += 1
        elif char == closing:
            depth -= 1
            if depth == 0:
                return at
    return None


def first_json(text: str, opening: str) -> Any | None:
    """The first span that is valid JSON, or None."""
    for span in balanced_spans(text, opening):
        try:
            return json.loads(span)
        except (ValueError, RecursionError):
            continue
    return None


def string_list(text: str) -> list[str]:
    """Strings of a JSON array; else the first bracketed span cut at commas; else numbered or bulleted lines."""
    for span in balanced_spans(text, "["):
        try:
            items = json.loads(span)
        except (ValueError, RecursionError):
            continue
        found = [_NUMBERED.sub("", item).strip() for item in map(_item_text, items) if item and item.strip()]
        if found:
            return found
    lists = balanced_spans(text, "[") or _BRACKETS.findall(text)
    if lists:
        found = [part.strip().strip(_QUOTES).strip() for part in lists[0][1:-1].split(",")]
        return [part for part in found if part]
    return [m.group(1).strip(_QUOTES).strip() for m in map(_BULLET.match, text.split("\n")) if m]


def _item_text(item: Any) -> str | None:
    """A string, or the instruction inside an object: under a usual name, or its only text."""
    if isinstance(item, str):
        return item
    if isinstance(item, dict):
        for key in ("instruction", "question", "prompt", "text"):
            if isinstance(item.get(key), str):
                return str(item[key])
        texts = [value for value in item.values() if isinstance(value, str)]
        return texts[0] if len(texts) == 1 else None
    return None


def question_in(text: str) -> str:
    """The question in what a model wrote when it was asked for one: without what it says before it.

    "Here is one: How long is the Rhine?" is "How long is the Rhine?". A text without a question mark stays whole.
    """
    end = max(text.rfind(mark) for mark in _QUESTION_MARKS)
    if end < 0:
        return text.strip().strip(_QUOTES).strip()
    asked = text[: end + 1].rsplit("\n", 1)[-1].strip().strip("*").strip()
    _, colon, tail = asked.rpartition(": ")
    tail = tail.strip().strip(_QUOTES).strip()
    if colon and len(tail.split()) >= 3 and (tail[0].isupper() or not tail[0].isascii()):
        return tail
    return asked.strip(_QUOTES).strip()


def itself(text: str, original: str = "") -> str:
    """What was asked for, without a sentence before it ("Here is the translation:") and without quotes around it.

    ``original`` is what it was made of: what that has too belongs to the text.
    """
    first, _, rest = text.strip().partition("\n")
    if rest.strip() and _announces(first) and not _announces(original.strip().partition("\n")[0]):
        text = rest
    text = text.strip()
    paired = len(text) > 1 and (text[0], text[-1]) in _PAIRED and not {text[0], text[-1]} & set(text[1:-1])
    return text[1:-1].strip() if paired and original[:1] != text[0] else text


def _announces(line: str) -> bool:
    return line.rstrip(" *").endswith(":")


def list_of(count: int, longest: int = 300) -> Constraint:
    """Decoding limited to a JSON array of ``count`` strings, which even small models then get right."""
    item = {"type": "string", "minLength": 3, "maxLength": longest}
    return Constraint("json_schema", {"type": "array", "items": item, "minItems": count, "maxItems": count})


def fenced_code(text: str) -> tuple[str, str] | None:
    """Language and content of the first fenced block; an unclosed one runs to the end."""
    found = re.search(r"```([\w+-]*)[ \t]*\n(.*?)(?:\n```|\Z)", text, re.DOTALL)
    return (found.group(1), found.group(2)) if found else None


def score(text: str, low: float, high: float) -> float | None:
    """The first number within [low, high]; "8/10" is 8."""
    for found in re.finditer(r"(?<![\w.])-?\d+(?:\.\d+)?", text):
        value = float(found.group())
        if low <= value <= high:
            return value
    return None
