"""Function Gemma: ``call:name{key:<escape>text<escape>,other:1}`` between function call marks."""

from __future__ import annotations

from workers.engine.tool_parsers import gemma4
from workers.engine.tool_parsers.layout import Family

_START, _END, _QUOTE = "<start_function_call>", "<end_function_call>", "<escape>"

FAMILY = Family(
    parse=lambda markup, _tools: gemma4.parse(markup, _QUOTE),
    starts=(_START,),
    end=_END,
    signs=((_START,),),
    forced=lambda tool: gemma4.pieces(tool, _START, _END, _QUOTE),
)
