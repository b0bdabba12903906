"""gpt-oss: channels. Reasoning is the analysis channel, a call is a message addressed ``to=functions.name``.

The channels themselves are told apart in workers.engine.channels; here a call's header and body are read.
"""

from __future__ import annotations

import json
import re

from mlxplatform.inference.contract import Tool
from workers.engine.tool_parsers import json_calls
from workers.engine.tool_parsers.layout import Call, Family, Json, Literal, Piece, parameters

_RECIPIENT = re.compile(r"to=(?:functions\.)?([\w.-]+)")


def recipient(header: str) -> str | None:
    """The tool a message header addresses, None for one to the user."""
    match = _RECIPIENT.search(header)
    return match[1] if match else None


def _parse(markup: str, _tools: list[Tool]) -> list[Call]:
    header, mark, body = markup.partition("<|message|>")
    name = recipient(header)
    if name is None or not mark:
        raise ValueError("not a call")
    return [(name, json_calls.as_arguments(json.loads(body) if body.strip() else {}))]


def _forced(tool: Tool) -> tuple[Piece, ...]:
    opening = f"<|channel|>commentary to=functions.{tool.name} <|constrain|>json<|message|>"
    return Literal(opening), Json(parameters(tool))


FAMILY = Family(parse=_parse, starts=(), end=None, signs=(("<|channel|>", "<|message|>"),), forced=_forced)
