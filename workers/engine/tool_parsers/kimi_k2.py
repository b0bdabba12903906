"""Kimi K2: ``functions.name:0<|tool_call_argument_begin|>{…}`` between call marks, inside a section."""

from __future__ import annotations

import json
import re

from mlxplatform.inference.contract import Tool
from workers.engine.tool_parsers import json_calls
from workers.engine.tool_parsers.layout import Call, Family, Json, Literal, Piece, parameters
from workers.engine.tool_parsers.tagged import covered

_CALL = re.compile(
    r"<\|tool_call_begin\|>\s*(?:functions\.)?(.+?)(?::\d+)?\s*<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>", re.DOTALL
)


def _parse(markup: str, _tools: list[Tool]) -> list[Call]:
    found = list(_CALL.finditer(markup))
    if not found or not covered(markup, found):
        raise ValueError("not a call section")
    return [(match[1].strip(), json_calls.as_arguments(json.loads(match[2]))) for match in found]


def _forced(tool: Tool) -> tuple[Piece, ...]:
    opening = f"<|tool_calls_section_begin|><|tool_call_begin|>functions.{tool.name}:0<|tool_call_argument_begin|>"
    return Literal(opening), Json(parameters(tool)), Literal("<|tool_call_end|><|tool_calls_section_end|>")


FAMILY = Family(
    parse=_parse,
    starts=("<|tool_calls_section_begin|>",),
    end="<|tool_calls_section_end|>",
    signs=(("<|tool_calls_section_begin|>",),),
    forced=_forced,
)
