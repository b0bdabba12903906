"""Argument values written as bare text, decoded by the tool's schema.

A parameter that can only be a string stays the text it is, "5" included; anything else is read as JSON when
it is JSON.
"""

from __future__ import annotations

import html
import json
from typing import Any

from mlxplatform.inference.contract import Tool
from workers.engine.tool_parsers.layout import named, parameters

_TEXT_ONLY = {"string", "null"}


def _types(schema: Any) -> set[str]:
    """Types a schema allows; empty when it does not say."""
    if not isinstance(schema, dict):
        return set()
    stated = schema.get("type")
    if isinstance(stated, str):
        return {stated}
    if isinstance(stated, list):
        return {entry for entry in stated if isinstance(entry, str)}
    if isinstance(schema.get("enum"), list):
        return {"string" if isinstance(value, str) else "other" for value in schema["enum"]}
    found: set[str] = set()
    for key in ("anyOf", "oneOf"):
        for option in schema.get(key) or []:
            types = _types(option)
            if not types:
                return set()
            found |= types
    return found


def property_schema(tools: list[Tool], tool_name: str, key: str) -> Any:
    properties = parameters(named(tools, tool_name)).get("properties")
    return properties.get(key) if isinstance(properties, dict) else None


def is_text(schema: Any) -> bool:
    """Whether values of this schema are written without quotes."""
    types = _types(schema)
    return bool(types) and types <= _TEXT_ONLY and types != {"null"}


def decoded(raw: str, schema: Any) -> Any:
    """One value. ``raw`` has its framing white space already removed."""
    types = _types(schema)
    if types and types <= _TEXT_ONLY:
        return None if "null" in types and raw.strip() == "null" else html.unescape(raw)
    text = raw.strip()
    try:
        return json.loads(text)
    except ValueError:
        pass
    if text in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[text]
    return html.unescape(raw)


def unframed(raw: str) -> str:
    """A value without the one line break that layouts put on either side of it."""
    return raw.removeprefix("\n").removesuffix("\n")
