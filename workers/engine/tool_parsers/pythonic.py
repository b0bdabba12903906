"""LFM 2 and kin: a Python list of calls with keyword arguments, ``[name(key="value", n=2)]``.

Read as a syntax tree, never run. Nested containers hold JSON's true, false and null.
"""

from __future__ import annotations

import ast
from typing import Any

from mlxplatform.inference.contract import Tool
from workers.engine.tool_parsers import json_calls
from workers.engine.tool_parsers.layout import Call, Family

_JSON_NAMES = {"true": True, "false": False, "null": None}


class _JsonNames(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in _JSON_NAMES:
            return node
        return ast.copy_location(ast.Constant(_JSON_NAMES[node.id]), node)


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    raise ValueError("not a name")


def _call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with keyword arguments")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("unpacked arguments")
        arguments[keyword.arg] = ast.literal_eval(_JsonNames().visit(keyword.value))
    return _dotted(node.func), arguments


def _parse(markup: str, _tools: list[Tool]) -> list[Call]:
    text = markup.strip()
    if text.startswith(("{", "[{")):
        return json_calls.calls(text)
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, MemoryError):
        raise ValueError("not Python") from None
    nodes = tree.elts if isinstance(tree, ast.List) else [tree]
    return [_call(node) for node in nodes]


FAMILY = Family(
    parse=_parse,
    starts=("<|tool_call_start|>",),
    end="<|tool_call_end|>",
    signs=(("<|tool_list_start|>",), ("<|tool_call_start|>",)),
    vocabulary=(("<|tool_call_start|>", "<|tool_call_end|>"),),
)
