"""Granite 3: a JSON list behind ``<|tool_call|>``, up to the end of the answer."""

from __future__ import annotations

import json

from mlxplatform.inference.contract import Tool
from workers.engine.tool_parsers import json_calls
from workers.engine.tool_parsers.layout import Call, Family, Json, Literal, Piece, parameters


def _parse(markup: str, _tools: list[Tool]) -> list[Call]:
    return json_calls.calls(markup)


def _forced(tool: Tool) -> tuple[Piece, ...]:
    return Literal(f'<|tool_call|>[{{"name": {json.dumps(tool.name)}, "arguments": '), Json(parameters(tool)), Literal("}]")


FAMILY = Family(parse=_parse, starts=("<|tool_call|>",), end=None, signs=(("<|tool_call|>",),), forced=_forced)
