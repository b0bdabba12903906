"""How model families write tool calls: one module a family.

A family module has ``STARTS`` (texts that open a call), ``END`` (text that closes it, None when only the end
of the answer does), ``signs`` (what in a template gives the family away) and
``parse(markup, tools) -> list[Call]``, which raises ``ValueError`` for anything it cannot read completely.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from tokenizers import Tokenizer

#: Families in the order their signs are looked for: the most specific first.
FAMILIES: tuple[str, ...] = ("hermes",)


def family(name: str) -> ModuleType:
    if name not in FAMILIES:
        raise ValueError(f"unknown tool format {name!r}")
    return import_module(f"workers.engine.tool_parsers.{name}")


def detect(template: str, tokenizer: Tokenizer) -> str:
    """The family a template writes; hermes for one that gives no sign."""
    for name in FAMILIES:
        if any(sign in template for sign in family(name).SIGNS):
            return name
    return "hermes"
