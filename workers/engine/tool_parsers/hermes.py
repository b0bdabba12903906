"""Hermes, Qwen 2.5 and 3, and every model whose template has no layout of its own: JSON in ``<tool_call>`` tags."""

from __future__ import annotations

import json

from mlxplatform.inference.contract import Tool
from workers.engine.tool_parsers import json_calls
from workers.engine.tool_parsers.layout import Call, Family, Json, Literal, Piece, parameters


def _parse(markup: str, _tools: list[Tool]) -> list[Call]:
    return json_calls.calls(markup)


def _forced(tool: Tool) -> tuple[Piece, ...]:
    opening = f'<tool_call>\n{{"name": {json.dumps(tool.name)}, "arguments": '
    return Literal(opening), Json(parameters(tool)), Literal("}\n</tool_call>")


FAMILY = Family(parse=_parse, starts=("<tool_call>",), end="</tool_call>", signs=(("<tool_call>",),), forced=_forced)
