"""The Jinja in which people's text templates run: no way out of a value, no work and no text without end. Pure.

A template reads one row and writes a text, so nothing in it may multiply. What it may call is a list of harmless
methods and filters; operators and filters that make much out of little look at what would come out first; lists are
the row's own or constants, so that none can hold itself twice; loops, calls and filters look at a clock.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jinja2 import StrictUndefined, Undefined, nodes, pass_context, pass_environment, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.filters import do_tojson, make_attrgetter
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

#: Longest text that a step may make of others, characters; what a row holds may be as long as its line.
MAX_TEXT, MAX_VALUE = 200_000, 16 * 1024 * 1024
#: Largest number, on either side of zero, that an operator may give.
MAX_NUMBER = 10**18
#: Processor seconds that one filling may take. A page of text takes a thousandth.
SECONDS = 0.5
#: Spaces by which JSON may be indented.
MAX_INDENT = 8
#: Where a filling keeps the end of its time. No template can spell this name.
_UNTIL = "@until"

#: Methods of texts, numbers, lists and objects that give no more than they are given.
METHODS = frozenset(
    [
        "capitalize",
        "casefold",
        "count",
        "endswith",
        "find",
        "get",
        "index",
        "isalnum",
        "isalpha",
        "isdecimal",
        "isdigit",
        "islower",
        "isnumeric",
        "isspace",
        "istitle",
        "isupper",
        "items",
        "keys",
        "lower",
        "lstrip",
        "partition",
        "removeprefix",
        "removesuffix",
        "rfind",
        "rpartition",
        "rsplit",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "swapcase",
        "title",
        "upper",
        "values",
    ]
)
#: Those that make a thing of every few characters.
_SPLITTERS = frozenset(["partition", "rpartition", "rsplit", "split", "splitlines"])
#: Filters that neither run long nor make much out of little, beside our own below.
_FILTERS = [
    "abs",
    "d",
    "default",
    "first",
    "float",
    "int",
    "last",
    "length",
    "list",
    "map",
    "max",
    "min",
    "reject",
    "select",
    "sort",
    "truncate",
    "unique",
]
#: Those that read whatever they get as text.
_TEXT_FILTERS = ["capitalize", "e", "escape", "lower", "title", "trim", "upper"]
#: Those that hand on one thing after another.
_LAZY = frozenset(["map", "reject", "select", "unique"])
#: Statements that lead elsewhere, or keep text where nobody counts it.
_STATEMENTS: dict[type[nodes.Node], str] = {
    nodes.Import: "import",
    nodes.FromImport: "import",
    nodes.Include: "include",
    nodes.Extends: "extends",
    nodes.Macro: "macro",
    nodes.CallBlock: "call",
    nodes.Block: "block",
    nodes.FilterBlock: "filter",
    nodes.AssignBlock: "set with a block",
}


class NotAllowed(ValueError):
    """Something that a template may not hold; a sentence."""


def budget() -> Mapping[str, float]:
    """What a filling needs beside its row."""
    return {_UNTIL: time.thread_time() + SECONDS}


def _watch(context: Context) -> None:
    if time.thread_time() > context.resolve(_UNTIL):
        raise SecurityError(f"it takes longer than {SECONDS:g} s to fill in")


def _bounded(size: int, longest: int = MAX_TEXT) -> None:
    if size > longest:
        raise SecurityError(f"a text of more than {longest} characters")


def written(value: Any) -> str:
    """A value as it stands in the text: what JSON calls it, never what Python does."""
    if isinstance(value, str):
        return value
    if value is None:
        raise SecurityError("a value is null; say what to write then, as in default('none', true)")
    if isinstance(value, Undefined):
        return str(value)  # raises what is the matter
    if isinstance(value, int | float | dict | list | tuple):
        return json.dumps(value, ensure_ascii=False)
    what = "a method, which needs brackets: ()" if callable(value) else "no text yet; end it with a filter: list or join"
    raise SecurityError(f"a value is {what}")


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _watch(context)
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            _bounded(len(left) + len(right))
            return left + right
        if operator == "**" or not all(isinstance(side, int | float) for side in (left, right)):
            kinds = "numbers and texts" if operator == "+" else "small numbers"
            raise SecurityError(f"the operator {operator} is for {kinds} only")
        made = super().call_binop(context, operator, left, right)
        if abs(made) > MAX_NUMBER:
            raise SecurityError(f"a number beyond {MAX_NUMBER:.0e}")
        return made

    def getattr(self, obj: Any, attribute: str) -> Any:
        """What a row calls ``items`` or ``count`` is meant, not the method of that name."""
        return obj[attribute] if isinstance(obj, dict) and attribute in obj else super().getattr(obj, attribute)

    def wrap_str_format(self, value: Any) -> None:
        """The format method is a method like others, and not on the list."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        allowed = attr in METHODS or isinstance(obj, LoopContext)
        return allowed and super().is_safe_attribute(obj, attr, value)

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        _watch(context)
        given = getattr(called, "__self__", None)
        if isinstance(given, str) and getattr(called, "__name__", "") in _SPLITTERS:
            _bounded(len(given))
        return super().call(context, called, *args, **kwargs)


@pass_context
def _checked(context: Context, value: Any) -> Any:
    _watch(context)
    if isinstance(value, str):
        _bounded(len(value), MAX_VALUE)
    return value


@pass_context
def _watched(context: Context, values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        _watch(context)
        yield value


@pass_context
def _joined(context: Context, values: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    read = make_attrgetter(context.environment, attribute) if attribute is not None else None
    between, pieces, size = written(d), [], 0
    for value in values:
        _watch(context)
        piece = written(read(value) if read else value)
        size += len(piece) + len(between)
        _bounded(size)
        pieces.append(piece)
    return between.join(pieces)


def _replaced(value: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, out, into = written(value), written(old), written(new)
    found = text.count(out) if count is None else max(min(text.count(out), count), 0)
    grown = found * (len(into) - len(out))
    if grown > 0:
        _bounded(len(text) + grown)
    return text.replace(out, into, found)


@pass_environment
def _sum(environment: Any, values: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
    read = make_attrgetter(environment, attribute) if attribute is not None else None
    total = start
    for value in (read(value) if read else value for value in values):
        if not isinstance(total, int | float) or not isinstance(value, int | float):
            raise SecurityError("sum is for numbers only")
        total += value
    return total


@pass_eval_context
def _as_json(eval_context: nodes.EvalContext, value: Any, indent: int | None = None) -> Any:
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= MAX_INDENT):
        raise SecurityError(f"tojson indents by 0 to {MAX_INDENT}")
    return do_tojson(eval_context, value, indent)


_OWN: dict[str, Callable[..., Any]] = {
    "join": _joined,
    "replace": _replaced,
    "string": written,
    "sum": _sum,
    "tojson": _as_json,
    "@joined": _joined,
    "@checked": _checked,
    "@watched": _watched,
}


def _of_text(made: Callable[..., Any]) -> Callable[..., Any]:
    return lambda value, *args, **kwargs: made(written(value), *args, **kwargs)


def _environment() -> _Environment:
    environment = _Environment(undefined=StrictUndefined, finalize=written, autoescape=False, keep_trailing_newline=True)
    environment.globals.clear()
    stock = environment.filters
    texts = {name: _of_text(stock[name]) for name in _TEXT_FILTERS}
    environment.filters = {name: stock[name] for name in _FILTERS} | texts | _OWN
    return environment


environment = _environment()


class _Watching(NodeTransformer):
    """Puts our filters where a template could run long or grow."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filter("@watched", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter("@joined", nodes.List(node.nodes, lineno=node.lineno))

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        self.generic_visit(node)
        return _filter("@watched" if node.name in _LAZY else "@checked", node)


def _filter(name: str, node: nodes.Node) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def refuse(tree: nodes.Template) -> None:
    """Raises NotAllowed for what templates may not hold."""
    for node in tree.find_all(tuple(_STATEMENTS)):
        raise NotAllowed(f"{_STATEMENTS[type(node)]} is not available")
    for attribute in tree.find_all(nodes.Getattr):
        if attribute.attr.startswith("_"):
            raise NotAllowed(f"access to {attribute.attr!r} is not allowed")
    if any(loop.recursive for loop in tree.find_all(nodes.For)):
        raise NotAllowed("recursive loops are not available")
    harmless = _read_at_once(tree)
    for literal in tree.find_all((nodes.List, nodes.Tuple, nodes.Dict)):
        target = isinstance(literal, nodes.Tuple) and literal.ctx == "store"
        if not target and id(literal) not in harmless and any(True for _ in literal.find_all(nodes.Name)):
            raise NotAllowed("a list or object written in a template holds constants, unless it is joined or looked through")


def _read_at_once(tree: nodes.Template) -> set[int]:
    """Lists that are compared with or joined and then gone: their things can hold no other list, nor be printed as one."""
    operands = [part for node in tree.find_all(nodes.Compare) for part in (node.expr, *(op.expr for op in node.ops))]
    joined = [node.node for node in tree.find_all(nodes.Filter) if node.name == "join"]
    return {id(part) for part in [*operands, *joined]}


def watched(tree: nodes.Template) -> nodes.Template:
    """The tree with our checks in it."""
    made: nodes.Template = _Watching().visit(tree)
    made.set_environment(environment)
    return made
