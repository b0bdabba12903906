"""LongCat: GLM's pairs in tags of its own, or JSON."""

from __future__ import annotations

from mlxplatform.inference.contract import Tool
from workers.engine.tool_parsers.glm47 import pairs
from workers.engine.tool_parsers.layout import Call, Family, Literal, Piece
from workers.engine.tool_parsers.tagged import argument_pieces


def _parse(markup: str, tools: list[Tool]) -> list[Call]:
    return pairs(markup, tools, "longcat_")


def _forced(tool: Tool) -> tuple[Piece, ...]:
    arguments = argument_pieces(
        tool, lambda key: f"<longcat_arg_key>{key}</longcat_arg_key>\n<longcat_arg_value>", "</longcat_arg_value>", after="\n"
    )
    return Literal(f"<longcat_tool_call>{tool.name}\n"), *arguments, Literal("</longcat_tool_call>")


FAMILY = Family(
    parse=_parse,
    starts=("<longcat_tool_call>",),
    end="</longcat_tool_call>",
    signs=(("<longcat_tool_call>",),),
    forced=_forced,
)
