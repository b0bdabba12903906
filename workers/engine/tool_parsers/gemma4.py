"""Gemma 4: ``call:name{key:<|"|>text<|"|>,other:1}``; keys without quotes, a mark of its own around strings."""

from __future__ import annotations

import json
import re

from mlxplatform.inference.contract import Tool
from workers.engine.tool_parsers import json_calls
from workers.engine.tool_parsers.layout import Call, Family

_QUOTE = '<|"|>'
_NAME = re.compile(r"\s*call:([\w.-]+)\s*(?=\{)")
_KEY = re.compile(r"([{,]\s*)([\w.-]+)\s*:")


def _object_end(text: str, at: int) -> int:
    """Index behind the brace that closes the object which opens at ``at``; braces inside strings do not count."""
    depth = 0
    while at < len(text):
        if text.startswith(_QUOTE, at):
            closing = text.find(_QUOTE, at + len(_QUOTE))
            if closing < 0:
                break
            at = closing + len(_QUOTE)
            continue
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
        if depth == 0:
            return at
    raise ValueError("an object that does not end")


def _as_json(text: str) -> str:
    parts = text.split(_QUOTE)
    # Even parts are structure, odd ones the insides of strings.
    return "".join(_KEY.sub(r'\1"\2":', part) if index % 2 == 0 else json.dumps(part) for index, part in enumerate(parts))


def _parse(markup: str, _tools: list[Tool]) -> list[Call]:
    found: list[Call] = []
    at = 0
    while markup[at:].strip():
        head = _NAME.match(markup, at)
        if head is None:
            raise ValueError("not a call")
        at = _object_end(markup, head.end())
        found.append((head[1], json_calls.as_arguments(json.loads(_as_json(markup[head.end() : at])))))
    return found


FAMILY = Family(parse=_parse, starts=("<|tool_call>",), end="<tool_call|>", signs=(("<|tool_call>", "<tool_call|>"),))
