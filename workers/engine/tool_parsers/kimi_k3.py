"""Kimi K3: nested ``<|open|>…<|sep|>…<|close|>…<|sep|>`` blocks, typed arguments or one JSON block."""

from __future__ import annotations

import json
import re

from mlxplatform.inference.contract import Tool
from workers.engine.tool_parsers import json_calls
from workers.engine.tool_parsers.layout import Call, Family, Json, Literal, Piece, parameters
from workers.engine.tool_parsers.tagged import covered


def _block(name: str) -> re.Pattern[str]:
    return re.compile(rf"<\|open\|>{name}((?:(?!<\|sep\|>).)*)<\|sep\|>(.*?)<\|close\|>{name}<\|sep\|>", re.DOTALL)


_CALL, _ARGUMENT, _JSON = _block("call"), _block("argument"), _block("json")
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')


def _attributes(text: str) -> dict[str, str]:
    return {key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in _ATTRIBUTE.findall(text)}


def _parse(markup: str, _tools: list[Tool]) -> list[Call]:
    blocks = list(_CALL.finditer(markup))
    if not blocks or not covered(markup, blocks):
        raise ValueError("not a tools section")
    found: list[Call] = []
    for block in blocks:
        name = _attributes(block[1]).get("tool", "")
        whole = _JSON.search(block[2])
        if whole is not None:
            found.append((name, json_calls.as_arguments(json.loads(whole[2]))))
            continue
        values = list(_ARGUMENT.finditer(block[2]))
        if not covered(block[2], values):
            raise ValueError("text between arguments")
        arguments = {}
        for value in values:
            attributes = _attributes(value[1])
            text_only = attributes.get("type", "string") == "string"
            arguments[attributes["key"]] = value[2] if text_only else json.loads(value[2])
        found.append((name, arguments))
    return found


def _forced(tool: Tool) -> tuple[Piece, ...]:
    name = tool.name.replace("&", "&amp;").replace('"', "&quot;")
    return (
        Literal(f'<|open|>tools<|sep|><|open|>call tool="{name}"<|sep|><|open|>json<|sep|>'),
        Json(parameters(tool)),
        Literal("<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>"),
    )


FAMILY = Family(
    parse=_parse,
    starts=("<|open|>tools<|sep|>",),
    end="<|close|>tools<|sep|>",
    vocabulary=(("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),),
    forced=_forced,
)
