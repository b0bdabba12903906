"""Nemotron Nano: a JSON list in ``<TOOLCALL>`` tags."""

from __future__ import annotations

import json

from mlxplatform.inference.contract import Tool
from workers.engine.tool_parsers import json_calls
from workers.engine.tool_parsers.layout import Call, Family, Json, Literal, Piece, parameters


def _parse(markup: str, _tools: list[Tool]) -> list[Call]:
    return json_calls.calls(markup)


def _forced(tool: Tool) -> tuple[Piece, ...]:
    opening = f'<TOOLCALL>[{{"name": {json.dumps(tool.name)}, "arguments": '
    return Literal(opening), Json(parameters(tool)), Literal("}]</TOOLCALL>")


FAMILY = Family(parse=_parse, starts=("<TOOLCALL>",), end="</TOOLCALL>", signs=(("<TOOLCALL>",),), forced=_forced)
