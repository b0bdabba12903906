"""MiniMax M2: ``<invoke name="…"><parameter name="…">value</parameter></invoke>`` in ``<minimax:tool_call>`` tags."""

from __future__ import annotations

import re

from mlxplatform.inference.contract import Tool
from workers.engine.tool_parsers.layout import Call, Family, Literal, Piece
from workers.engine.tool_parsers.tagged import argument_pieces, covered, unquoted
from workers.engine.tool_parsers.values import decoded, property_schema, unframed

_INVOKE = re.compile(r"<invoke name=([^>]+)>(.*?)</invoke>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter name=([^>]+)>(.*?)</parameter>", re.DOTALL)


def _parse(markup: str, tools: list[Tool]) -> list[Call]:
    invocations = list(_INVOKE.finditer(markup))
    if not invocations or not covered(markup, invocations):
        raise ValueError("not an invoke block")
    found = []
    for invocation in invocations:
        name = unquoted(invocation[1])
        values = list(_PARAMETER.finditer(invocation[2]))
        if not covered(invocation[2], values):
            raise ValueError("text between parameters")
        arguments = {}
        for value in values:
            key = unquoted(value[1])
            arguments[key] = decoded(unframed(value[2]), property_schema(tools, name, key))
        found.append((name, arguments))
    return found


def _forced(tool: Tool) -> tuple[Piece, ...]:
    arguments = argument_pieces(tool, lambda key: f'<parameter name="{key}">', "</parameter>", after="\n")
    opening = f'<minimax:tool_call>\n<invoke name="{tool.name}">\n'
    return Literal(opening), *arguments, Literal("</invoke>\n</minimax:tool_call>")


FAMILY = Family(
    parse=_parse,
    starts=("<minimax:tool_call>",),
    end="</minimax:tool_call>",
    signs=(("<minimax:tool_call>",),),
    forced=_forced,
)
