"""Function Gemma: ``call:name{key:<escape>text<escape>,other:1}`` between function call marks."""

from __future__ import annotations

from mlxplatform.inference.contract import Tool
from workers.engine.tool_parsers import gemma4
from workers.engine.tool_parsers.layout import Call, Family


def _parse(markup: str, tools: list[Tool]) -> list[Call]:
    return gemma4.FAMILY.parse(markup.replace("<escape>", '<|"|>'), tools)


FAMILY = Family(
    parse=_parse,
    starts=("<start_function_call>",),
    end="<end_function_call>",
    signs=(("<start_function_call>",),),
)
