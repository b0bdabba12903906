"""Hermes, Qwen 2.5/3 and many more: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""

from __future__ import annotations

import json
from typing import Any

from mlxplatform.inference.contract import Tool

SIGNS = ("<tool_call>",)
STARTS = ("<tool_call>",)
END = "</tool_call>"


def parse(markup: str, tools: list[Tool]) -> list[tuple[str, dict[str, Any]]]:
    value = json.loads(markup)
    calls = value if isinstance(value, list) else [value]
    found = []
    for call in calls:
        if isinstance(call, dict) and isinstance(call.get("function"), dict):
            call = call["function"]
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise ValueError("no name")
        arguments = call.get("arguments", call.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = json.loads(arguments) if arguments.strip() else {}
        if not isinstance(arguments, dict):
            raise ValueError("arguments are no object")
        found.append((call["name"], arguments))
    return found
