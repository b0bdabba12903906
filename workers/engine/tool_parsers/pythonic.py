"""LFM 2 and kin: a Python list of calls with keyword arguments, ``[name(key="value", n=2)]``.

Read as a syntax tree, never run. Nested containers hold JSON's true, false and null.
"""

from __future__ import annotations

import ast
import json
import keyword
import warnings
from typing import Any

from mlxplatform.inference.contract import Tool
from workers.engine.tool_parsers import json_calls
from workers.engine.tool_parsers.layout import Call, Family, Json, Literal, Piece, listed

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


def _value(node: ast.expr, text: str) -> Any:
    """JSON first: its strings know escapes that mean something else in Python."""
    try:
        return json.loads(ast.get_source_segment(text, node) or "")
    except ValueError:
        return ast.literal_eval(_JsonNames().visit(node))


def _call(node: ast.expr, text: str) -> Call:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with keyword arguments")
    arguments: dict[str, Any] = {}
    for given in node.keywords:
        if given.arg is None:
            raise ValueError("unpacked arguments")
        arguments[given.arg] = _value(given.value, text)
    return _dotted(node.func), arguments


def _parse(markup: str, _tools: list[Tool]) -> list[Call]:
    text = markup.strip()
    if text.startswith(("{", "[{")):
        return json_calls.calls(text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that are JSON's and not Python's
            tree = ast.parse(text, mode="eval").body
    except (SyntaxError, MemoryError):
        raise ValueError("not Python") from None
    nodes = tree.elts if isinstance(tree, ast.List) else [tree]
    return [_call(node, text) for node in nodes]


def _argument(key: str, schema: Any) -> tuple[Piece, ...]:
    if not key.isidentifier() or keyword.iskeyword(key):
        raise ValueError(f"the argument name {key!r}")
    return Literal(f"{key}="), Json(schema)


def _forced(tool: Tool) -> tuple[Piece, ...]:
    if not all(part.isidentifier() and not keyword.iskeyword(part) for part in tool.name.split(".")):
        raise ValueError(f"the tool name {tool.name!r}")
    return Literal(f"<|tool_call_start|>[{tool.name}("), *listed(tool, _argument), Literal(")]<|tool_call_end|>")


FAMILY = Family(
    parse=_parse,
    starts=("<|tool_call_start|>",),
    end="<|tool_call_end|>",
    signs=(("<|tool_list_start|>",), ("<|tool_call_start|>",)),
    vocabulary=(("<|tool_call_start|>", "<|tool_call_end|>"),),
    forced=_forced,
)
