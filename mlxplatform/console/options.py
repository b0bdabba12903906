"""Options of a terminal command made from the field tables that orders are checked with; nothing is validated twice."""

from __future__ import annotations

from argparse import ArgumentParser, BooleanOptionalAction
from collections.abc import Iterable
from typing import Any

from mlxplatform.console.forms import number
from mlxplatform.http.fields import Field


def add(parser: ArgumentParser, fields: Iterable[Field], *, first: Iterable[str] = ()) -> None:
    """An option for each field; those named in ``first`` are asked for by their place instead."""
    leading = list(first)
    table = {field.name: field for field in fields}
    for name in leading:
        parser.add_argument(name, help=_help(table[name]))
    for field in table.values():
        if field.name not in leading:
            _add_option(parser, field)


def _add_option(parser: ArgumentParser, field: Field) -> None:
    flag = f"--{field.name.replace('_', '-')}"
    if field.kind == "bool":
        parser.add_argument(flag, action=BooleanOptionalAction, default=None, help=_help(field))
    elif field.kind in {"names", "numbers"}:
        parser.add_argument(flag, nargs="+", metavar=field.kind[:-1].upper(), help=_help(field))
    else:
        shown = "|".join(map(str, field.choices)) if field.choices else {"int": "N", "float": "X"}.get(field.kind, "TEXT")
        parser.add_argument(flag, metavar=shown, help=_help(field))


def _help(field: Field) -> str:
    default = "" if field.default is None or field.kind == "bool" else f" (default {field.default})"
    return f"{field.doc}{default}".replace("%", "%%")


def body_of(options: dict[str, Any], fields: Iterable[Field]) -> dict[str, Any]:
    """What was given, as the body the API takes. What is no number stays text, to be refused by name there."""
    given = {field: options[field.name] for field in fields if options.get(field.name) is not None}
    return {field.name: _value(field, raw) for field, raw in given.items()}


def _value(field: Field, raw: Any) -> Any:
    if field.kind == "numbers":
        return [number(one, "int") for one in raw]
    return number(raw, field.kind) if field.kind in {"int", "float"} else raw
