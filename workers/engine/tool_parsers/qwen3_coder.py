"""Qwen 3 Coder and Qwen 3.5: ``<function=name><parameter=key>value</parameter></function>`` in ``<tool_call>`` tags."""

from __future__ import annotations

import re

from mlxplatform.inference.contract import Tool
from workers.engine.tool_parsers import json_calls
from workers.engine.tool_parsers.layout import Call, Family, Literal, Piece
from workers.engine.tool_parsers.tagged import argument_pieces, covered
from workers.engine.tool_parsers.values import decoded, property_schema, unframed

_FUNCTION = re.compile(r"<function=([^>\s]+)\s*>(.*?)</function>", re.DOTALL)
# A value ends at its closing tag, or where the next one opens: models forget the closing tag now and then.
_PARAMETER = re.compile(r"<parameter=([^>]+)>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)


def _parse(markup: str, tools: list[Tool]) -> list[Call]:
    if markup.lstrip().startswith(("{", "[")):
        return json_calls.calls(markup)
    functions = list(_FUNCTION.finditer(markup))
    if not functions or not covered(markup, functions):
        raise ValueError("not a function block")
    found = []
    for function in functions:
        name, body = function[1], function[2]
        values = list(_PARAMETER.finditer(body))
        if not covered(body, values):
            raise ValueError("text between parameters")
        arguments = {
            key.strip(): decoded(unframed(raw), property_schema(tools, name, key.strip()))
            for key, raw in ((value[1], value[2]) for value in values)
        }
        found.append((name, arguments))
    return found


def _forced(tool: Tool) -> tuple[Piece, ...]:
    arguments = argument_pieces(tool, lambda key: f"<parameter={key}>\n", "</parameter>", before="\n", after="\n")
    return Literal(f"<tool_call>\n<function={tool.name}>\n"), *arguments, Literal("</function>\n</tool_call>")


FAMILY = Family(
    parse=_parse,
    starts=("<tool_call>",),
    end="</tool_call>",
    signs=(("<tool_call>\\n<function=",), ("<tool_call>\n<function=",)),
    forced=_forced,
)
