"""DeepSeek V3, R1 and V3.1: calls between ``<｜tool▁call▁begin｜>`` marks, with or without a fenced JSON block."""

from __future__ import annotations

import json
import re

from mlxplatform.inference.contract import Tool
from workers.engine.tool_parsers import json_calls
from workers.engine.tool_parsers.layout import Call, Family, Json, Literal, Piece, parameters
from workers.engine.tool_parsers.tagged import covered

_CALL = re.compile(r"<｜tool▁call▁begin｜>(.*?)<｜tool▁sep｜>(.*?)<｜tool▁call▁end｜>", re.DOTALL)
_FENCED = re.compile(r"([^\n]+)\n```(?:json)?\n(.*?)\n?```\s*", re.DOTALL)


def _parse(markup: str, _tools: list[Tool]) -> list[Call]:
    blocks = list(_CALL.finditer(markup))
    if not blocks or not covered(markup, blocks):
        raise ValueError("not a calls section")
    found: list[Call] = []
    for block in blocks:
        fenced = _FENCED.fullmatch(block[2])
        # V3 and R1 put the word "function" where V3.1 puts the name.
        name, arguments = (fenced[1], fenced[2]) if fenced else (block[1], block[2])
        found.append((name.strip(), json_calls.as_arguments(json.loads(arguments))))
    return found


def _forced(tool: Tool) -> tuple[Piece, ...]:
    opening = f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{tool.name}<｜tool▁sep｜>"
    return Literal(opening), Json(parameters(tool)), Literal("<｜tool▁call▁end｜><｜tool▁calls▁end｜>")


FAMILY = Family(
    parse=_parse,
    starts=("<｜tool▁calls▁begin｜>",),
    end="<｜tool▁calls▁end｜>",
    signs=(("<｜tool▁calls▁begin｜>",),),
    forced=_forced,
)
