"""Helpers of the layouts that tag every argument: one regular expression each for calls and arguments."""

from __future__ import annotations

import re
from collections.abc import Callable

from mlxplatform.inference.contract import Tool
from workers.engine.tool_parsers.layout import Json, Literal, Maybe, Piece, Until, parameters, properties_of
from workers.engine.tool_parsers.values import is_text


def covered(text: str, matches: list[re.Match[str]]) -> bool:
    """Whether the matches leave nothing of the text but white space."""
    at = 0
    for match in matches:
        if text[at : match.start()].strip():
            return False
        at = match.end()
    return not text[at:].strip()


def unquoted(name: str) -> str:
    name = name.strip()
    return name[1:-1] if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'" else name


def argument_pieces(
    tool: Tool, opening: Callable[[str], str], tag: str, *, before: str = "", after: str = ""
) -> tuple[Piece, ...]:
    """Every argument in schema order, the optional ones skippable.

    A text value ends at the closing ``tag`` itself, with no line break asked for in front of it: a model that
    closes without one would otherwise write on and on.
    """
    required = set(parameters(tool).get("required") or [])
    pieces: list[Piece] = []
    for key, value in properties_of(tool).items():
        body: tuple[Piece, ...] = (Until(tag),) if is_text(value) else (Json(value), Literal(before + tag))
        argument = (Literal(opening(key)), *body, *([Literal(after)] if after else []))
        pieces += argument if key in required else [Maybe(argument)]
    return tuple(pieces)
