"""GLM 4.5 to 4.7: ``<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>``."""

from __future__ import annotations

import re

from mlxplatform.inference.contract import Tool
from workers.engine.tool_parsers import json_calls
from workers.engine.tool_parsers.layout import Call, Family, Literal, Piece
from workers.engine.tool_parsers.tagged import argument_pieces, covered
from workers.engine.tool_parsers.values import decoded, property_schema


def pairs(markup: str, tools: list[Tool], tag: str) -> list[Call]:
    """A name, then keys and values in tags whose names begin with ``tag``."""
    text = markup.strip()
    if text.startswith(("{", "[")):
        return json_calls.calls(text)
    name, opening, _ = text.partition(f"<{tag}arg_key>")
    name = name.strip()
    body = text[text.index(opening) :] if opening else ""
    pattern = rf"<{tag}arg_key>(.*?)</{tag}arg_key>\s*<{tag}arg_value>(.*?)</{tag}arg_value>"
    found = list(re.finditer(pattern, body, re.DOTALL))
    if not name or not covered(body, found):
        raise ValueError("not a call")
    return [(name, {match[1].strip(): decoded(match[2], property_schema(tools, name, match[1].strip())) for match in found})]


def _parse(markup: str, tools: list[Tool]) -> list[Call]:
    return pairs(markup, tools, "")


def _forced(tool: Tool) -> tuple[Piece, ...]:
    arguments = argument_pieces(tool, lambda key: f"<arg_key>{key}</arg_key>\n<arg_value>", "</arg_value>", after="\n")
    return Literal(f"<tool_call>{tool.name}\n"), *arguments, Literal("</tool_call>")


FAMILY = Family(parse=_parse, starts=("<tool_call>",), end="</tool_call>", signs=(("<arg_key>",),), forced=_forced)
