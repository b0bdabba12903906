"""Text templates people write over the columns of their rows: sandboxed Jinja, strict about names, bounded.

Values are put in once and never read as templates themselves. There are no globals and few filters; attributes
that lead out of a value are refused, and so is text that grows without end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import StrictUndefined, meta, nodes
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError, UndefinedError
from jinja2.sandbox import ImmutableSandboxedEnvironment

#: Longest template and longest rendering, characters.
MAX_TEMPLATE, MAX_TEXT = 20_000, 200_000
#: Filters that neither run long nor make much out of little.
FILTERS = frozenset(
    [
        "abs",
        "capitalize",
        "d",
        "default",
        "e",
        "escape",
        "first",
        "float",
        "int",
        "join",
        "last",
        "length",
        "list",
        "lower",
        "map",
        "max",
        "min",
        "replace",
        "reject",
        "select",
        "sort",
        "string",
        "sum",
        "title",
        "tojson",
        "trim",
        "truncate",
        "unique",
        "upper",
    ]
)


class BadTemplate(ValueError):
    """A template, or its rendering for one row, that cannot be used; a sentence."""


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or not all(isinstance(side, int | float) for side in (left, right)):
            raise SecurityError(f"the operator {operator} is for small numbers only")
        return super().call_binop(context, operator, left, right)


def _environment() -> _Environment:
    environment = _Environment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)
    environment.globals.clear()
    environment.filters = {name: made for name, made in environment.filters.items() if name in FILTERS}
    return environment


_env = _environment()


class TextTemplate:
    """A compiled template. ``names`` are the columns it reads."""

    def __init__(self, source: str) -> None:
        """Raises BadTemplate."""
        if len(source) > MAX_TEMPLATE:
            raise BadTemplate(f"the template is longer than {MAX_TEMPLATE} characters")
        try:
            tree = _env.parse(source)
            if any(True for _ in tree.find_all((nodes.Import, nodes.FromImport, nodes.Include, nodes.Extends, nodes.Macro))):
                raise BadTemplate("import, include, extends and macro are not available")
            for attribute in tree.find_all(nodes.Getattr):
                if attribute.attr.startswith("_"):
                    raise BadTemplate(f"access to {attribute.attr!r} is not allowed")
            self.names = sorted(meta.find_undeclared_variables(tree))
            self._template = _env.from_string(tree)
        except TemplateSyntaxError as error:
            raise BadTemplate(f"line {error.lineno}: {error.message}") from None
        except TemplateError as error:
            raise BadTemplate(str(error.message)) from None

    def render(self, row: Mapping[str, Any]) -> str:
        """Raises BadTemplate: a name the row does not have, or something the sandbox refuses."""
        try:
            pieces: list[str] = []
            size = 0
            for piece in self._template.generate(dict(row)):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_TEXT:
                    raise BadTemplate(f"the text is longer than {MAX_TEXT} characters")
        except UndefinedError as error:
            raise BadTemplate(str(error.message)) from None
        except SecurityError as error:
            raise BadTemplate(f"not allowed in a template: {error.message}") from None
        except (TemplateError, TypeError, ValueError, ArithmeticError, KeyError, RecursionError) as error:
            raise BadTemplate(f"cannot be filled in: {error}") from None
        return "".join(pieces)


def compiled(source: str, refuse: Callable[[str], Exception]) -> TextTemplate:
    """The template, or ``refuse(sentence)`` raised."""
    try:
        return TextTemplate(source)
    except BadTemplate as error:
        raise refuse(str(error)) from None
