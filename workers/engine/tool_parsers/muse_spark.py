"""Muse Spark: ``<atem:invoke name="…"><atem:parameter name="…">…`` in ``<atem:function_calls>`` tags."""

from __future__ import annotations

import re

from mlxplatform.inference.contract import Tool
from workers.engine.tool_parsers.layout import Call, Family, Literal, Piece
from workers.engine.tool_parsers.tagged import argument_pieces, covered
from workers.engine.tool_parsers.values import decoded, property_schema

_INVOKE = re.compile(r"<atem:invoke\b[^>]*?\bname=\"([^\"]+)\"[^>]*>(.*?)</atem:invoke>", re.DOTALL)
_PARAMETER = re.compile(r"<atem:parameter\b[^>]*?\bname=\"([^\"]+)\"[^>]*>(.*?)</atem:parameter>", re.DOTALL)


def _parse(markup: str, tools: list[Tool]) -> list[Call]:
    invocations = list(_INVOKE.finditer(markup))
    if not invocations or not covered(markup, invocations):
        raise ValueError("not an invoke block")
    found = []
    for invocation in invocations:
        name = invocation[1]
        values = list(_PARAMETER.finditer(invocation[2]))
        if not covered(invocation[2], values):
            raise ValueError("text between parameters")
        found.append((name, {value[1]: decoded(value[2].strip(), property_schema(tools, name, value[1])) for value in values}))
    return found


def _forced(tool: Tool) -> tuple[Piece, ...]:
    arguments = argument_pieces(tool, lambda key: f'<atem:parameter name="{key}">', "</atem:parameter>")
    opening = f'<atem:function_calls><atem:invoke name="{tool.name}">'
    return Literal(opening), *arguments, Literal("</atem:invoke></atem:function_calls>")


FAMILY = Family(
    parse=_parse,
    starts=("<atem:function_calls>",),
    end="</atem:function_calls>",
    signs=(("<atem:function_calls>",),),
    forced=_forced,
)
