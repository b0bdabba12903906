"""Mistral and Devstral: ``[TOOL_CALLS]`` before a JSON list, or before ``name[ARGS]{…}`` repeated. No closing mark."""

from __future__ import annotations

import json
import re

from mlxplatform.inference.contract import Tool
from workers.engine.tool_parsers import json_calls
from workers.engine.tool_parsers.layout import Call, Family, Json, Literal, Piece, parameters

_HEADER = re.compile(r"\s*(?:\[TOOL_CALLS\])?\s*([\w.-]+)\s*(?:\[CALL_ID\][^\[]*)?\[ARGS\]\s*")
_decoder = json.JSONDecoder()


def _parse(markup: str, _tools: list[Tool]) -> list[Call]:
    text = markup.strip()
    if text.startswith(("[{", "{", "[ ")):
        return json_calls.calls(text.replace("[TOOL_CALLS]", " "))
    found: list[Call] = []
    at = 0
    while at < len(text):
        header = _HEADER.match(text, at)
        if header is None:
            raise ValueError("not a call")
        value, at = _decoder.raw_decode(text, header.end())
        found.append((header[1], json_calls.as_arguments(value)))
        at += len(text[at:]) - len(text[at:].lstrip())
    return found


def _forced(tool: Tool) -> tuple[Piece, ...]:
    return Literal(f'[TOOL_CALLS][{{"name": {json.dumps(tool.name)}, "arguments": '), Json(parameters(tool)), Literal("}]")


FAMILY = Family(parse=_parse, starts=("[TOOL_CALLS]",), end=None, signs=(("[TOOL_CALLS]",),), forced=_forced)
