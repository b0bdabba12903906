"""MiniCPM 5: ``<function name="…"><param name="…">value</param></function>``, no outer tag, CDATA around odd values."""

from __future__ import annotations

import re

from mlxplatform.inference.contract import Tool
from workers.engine.tool_parsers.layout import Call, Family, Literal, Piece
from workers.engine.tool_parsers.tagged import argument_pieces, covered, unquoted
from workers.engine.tool_parsers.values import decoded, property_schema

_HEAD = re.compile(r"\s*(\"[^\"]*\"|'[^']*'|[^\s\"'<>]+)\s*>", re.DOTALL)
_PARAM = re.compile(
    r"<param\s+name\s*=\s*(\"[^\"]*\"|'[^']*'|[^\s\"'<>]+)\s*>\s*(?:<!\[CDATA\[(.*?)\]\]>\s*|(.*?))</param>", re.DOTALL
)


def _parse(markup: str, tools: list[Tool]) -> list[Call]:
    head = _HEAD.match(markup)
    if head is None:
        raise ValueError("a call without a name")
    name, body = unquoted(head[1]), markup[head.end() :]
    values = list(_PARAM.finditer(body))
    if not covered(body, values):
        raise ValueError("text between parameters")
    arguments = {}
    for value in values:
        key = unquoted(value[1])
        schema = property_schema(tools, name, key)
        # CDATA is literal: entities in it are not entities.
        arguments[key] = decoded(value[3].strip(), schema) if value[2] is None else _literal(value[2], schema)
    return [(name, arguments)]


def _literal(text: str, schema: object) -> object:
    return decoded(text.replace("&", "&amp;"), schema) if "&" in text else decoded(text, schema)


def _forced(tool: Tool) -> tuple[Piece, ...]:
    arguments = argument_pieces(tool, lambda key: f'<param name="{key}">', "</param>")
    return Literal(f'<function name="{tool.name}">'), *arguments, Literal("</function>")


FAMILY = Family(
    parse=_parse,
    starts=("<function name=",),
    end="</function>",
    signs=(('<function name="', '<param name="'),),
    forced=_forced,
)
