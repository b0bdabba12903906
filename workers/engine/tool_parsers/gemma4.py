"""Gemma 4: ``call:name{key:<|"|>text<|"|>,other:1}``; keys without quotes, a mark of its own around strings."""

from __future__ import annotations

import json
import re
from typing import Any

from mlxplatform.inference.contract import Tool
from workers.engine.tool_parsers import json_calls
from workers.engine.tool_parsers.layout import Call, Family, Json, Literal, Piece, Until, listed
from workers.engine.tool_parsers.values import is_text

_QUOTE = '<|"|>'
_NAME = re.compile(r"\s*call:([\w.-]+)\s*(?=\{)")
_KEY = re.compile(r"([{,]\s*)([\w.-]+)\s*:")
_WORD = re.compile(r"[\w.-]+")
#: Strings in JSON's own quotes, whose insides are no structure.
_JSON_STRING = re.compile(r'("(?:[^"\\]|\\.)*")')


def _object_end(text: str, at: int, quote: str) -> int:
    """Index behind the brace that closes the object which opens at ``at``; braces inside strings do not count."""
    depth = 0
    while at < len(text):
        if text.startswith(quote, at):
            closing = text.find(quote, at + len(quote))
            if closing < 0:
                break
            at = closing + len(quote)
            continue
        if text[at] == '"' and (string := _JSON_STRING.match(text, at)):
            at = string.end()
            continue
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
        if depth == 0:
            return at
    raise ValueError("an object that does not end")


def _as_json(text: str, quote: str) -> str:
    parts = text.split(quote)
    # Even parts are structure, odd ones the insides of strings.
    return "".join(_quoted_keys(part) if index % 2 == 0 else json.dumps(part) for index, part in enumerate(parts))


def _quoted_keys(structure: str) -> str:
    pieces = _JSON_STRING.split(structure)
    return "".join(_KEY.sub(r'\1"\2":', piece) if index % 2 == 0 else piece for index, piece in enumerate(pieces))


def parse(markup: str, quote: str = _QUOTE) -> list[Call]:
    """Calls one after the other; ``quote`` stands on both sides of a text.

    Raises:
        ValueError: there is anything else.
    """
    found: list[Call] = []
    at = 0
    while markup[at:].strip():
        head = _NAME.match(markup, at)
        if head is None:
            raise ValueError("not a call")
        at = _object_end(markup, head.end(), quote)
        found.append((head[1], json_calls.as_arguments(json.loads(_as_json(markup[head.end() : at], quote)))))
    return found


def pieces(tool: Tool, start: str, end: str, quote: str = _QUOTE) -> tuple[Piece, ...]:
    """One call between its marks; text in marks of its own, anything else as JSON.

    Raises:
        ValueError: a name with characters this layout has no quotes for.
    """

    def argument(key: str, schema: Any) -> tuple[Piece, ...]:
        if not _WORD.fullmatch(key):
            raise ValueError(f"the argument name {key!r}")
        if is_text(schema):
            return Literal(f"{key}:{quote}"), Until(quote)
        return Literal(f"{key}:"), Json(schema)

    if not _WORD.fullmatch(tool.name):
        raise ValueError(f"the tool name {tool.name!r}")
    return Literal(f"{start}call:{tool.name}{{"), *listed(tool, argument), Literal(f"}}{end}")


FAMILY = Family(
    parse=lambda markup, _tools: parse(markup),
    starts=("<|tool_call>",),
    end="<tool_call|>",
    signs=(("<|tool_call>", "<tool_call|>"),),
    forced=lambda tool: pieces(tool, "<|tool_call>", "<tool_call|>"),
)
