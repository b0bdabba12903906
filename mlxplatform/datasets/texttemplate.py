"""Text templates people write over the columns of their rows: sandboxed Jinja, strict about names, bounded.

Values are put in once and never read as templates themselves. What a template may do at all is the business of
:mod:`mlxplatform.datasets.textsandbox`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from jinja2 import meta
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError, UndefinedError

from mlxplatform.datasets import textsandbox
from mlxplatform.datasets.textsandbox import MAX_TEXT, environment

#: Longest template, characters.
MAX_TEMPLATE = 20_000


class BadTemplate(ValueError):
    """A template, or its rendering for one row, that cannot be used; a sentence."""


class TextTemplate:
    """A compiled template. ``names`` are the columns it reads."""

    def __init__(self, source: str) -> None:
        """Raises BadTemplate."""
        if len(source) > MAX_TEMPLATE:
            raise BadTemplate(f"the template is longer than {MAX_TEMPLATE} characters")
        try:
            tree = environment.parse(source)
            textsandbox.refuse(tree)
            self.names = sorted(meta.find_undeclared_variables(tree))
            self._template = environment.from_string(textsandbox.watched(tree))
        except TemplateSyntaxError as error:
            raise BadTemplate(f"line {error.lineno}: {error.message}") from None
        except TemplateError as error:
            raise BadTemplate(str(error.message)) from None
        except textsandbox.NotAllowed as error:
            raise BadTemplate(str(error)) from None
        except (SyntaxError, RecursionError, MemoryError):
            raise BadTemplate("the template is nested too deeply") from None

    def render(self, row: Mapping[str, Any]) -> str:
        """Raises BadTemplate: a name the row does not have, or something the sandbox refuses."""
        try:
            pieces: list[str] = []
            size = 0
            for piece in self._template.generate({**row, **textsandbox.budget()}):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_TEXT:
                    raise BadTemplate(f"the text is longer than {MAX_TEXT} characters")
        except UndefinedError as error:
            raise BadTemplate(str(error.message)) from None
        except SecurityError as error:
            raise BadTemplate(f"not allowed in a template: {error.message}") from None
        except BadTemplate:
            raise
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise BadTemplate(f"cannot be filled in: {error}") from None
        except (RecursionError, MemoryError):
            raise BadTemplate("cannot be filled in: it takes too much memory") from None
        return "".join(pieces)


@lru_cache(maxsize=32)
def template_of(source: str) -> TextTemplate:
    """The compiled template, kept for the next row. Raises BadTemplate."""
    return TextTemplate(source)


def compiled(source: str, refuse: Callable[[str], Exception]) -> TextTemplate:
    """The template, or ``refuse(sentence)`` raised."""
    try:
        return template_of(source)
    except BadTemplate as error:
        raise refuse(str(error)) from None
