"""Llama 3.1 to 3.3: a JSON object with name and parameters as the whole answer, at times after ``<|python_tag|>``."""

from __future__ import annotations

import json

from mlxplatform.inference.contract import Tool
from workers.engine.tool_parsers import json_calls
from workers.engine.tool_parsers.layout import Call, Family, Json, Literal, Piece, parameters


def _parse(markup: str, _tools: list[Tool]) -> list[Call]:
    return json_calls.calls(markup, between=";,")


def _forced(tool: Tool) -> tuple[Piece, ...]:
    return Literal(f'{{"name": {json.dumps(tool.name)}, "parameters": '), Json(parameters(tool)), Literal("}")


FAMILY = Family(
    parse=_parse,
    starts=("<|python_tag|>",),
    end=None,
    signs=(("<|python_tag|>",), ("<|eot_id|>", '"parameters"'), ("<|eot_id|>", "Environment: ipython")),
    bare=('{"name"', '{ "name"', '{"type": "function"', '[{"name"'),
    forced=_forced,
)
