"""Calls written as JSON: an object with a name and arguments, or a list of such."""

from __future__ import annotations

import json
from typing import Any

from workers.engine.tool_parsers.layout import Call

_decoder = json.JSONDecoder()


def as_arguments(value: Any) -> dict[str, Any]:
    """Arguments given as an object or as JSON text of one."""
    if value is None:
        return {}
    if isinstance(value, str):
        value = json.loads(value) if value.strip() else {}
    if not isinstance(value, dict):
        raise ValueError("arguments are not an object")
    return value


def as_call(value: Any) -> Call:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict):
        raise ValueError("not a call")
    name = value.get("name", value.get("function"))
    if not isinstance(name, str):
        raise ValueError("a call without a name")
    for key in ("arguments", "parameters"):
        if key in value:
            return name, as_arguments(value[key])
    return name, {}


def calls(text: str, *, between: str = "") -> list[Call]:
    """Every call in the text: JSON values one after the other, apart by white space or ``between``.

    Raises:
        ValueError: there is anything else in it.
    """
    out: list[Call] = []
    at = 0
    skipped = " \t\r\n" + between
    while True:
        while at < len(text) and text[at] in skipped:
            at += 1
        if at >= len(text):
            break
        value, at = _decoder.raw_decode(text, at)
        out += [as_call(item) for item in (value if isinstance(value, list) else [value])]
    if not out:
        raise ValueError("no call")
    return out
