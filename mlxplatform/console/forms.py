"""Forms drawn from the field tables that the orders of jobs are checked with; nothing is validated twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import QueryDict

from mlxplatform.http.fields import Field


@dataclass(frozen=True)
class Input:
    """One control of a form: ``kind`` is text, number, check or select."""

    name: str
    kind: str
    label: str
    hint: str
    value: Any
    required: bool
    choices: Sequence[str]


def inputs_for(fields: Sequence[Field], given: QueryDict, *, choices: Mapping[str, Sequence[str]] | None = None) -> list[Input]:
    """The controls of an order, filled with what was given before."""
    return [_input(field, given, (choices or {}).get(field.name, field.choices)) for field in fields]


def _input(field: Field, given: QueryDict, choices: Sequence[str]) -> Input:
    if choices:
        kind = "select"
    else:
        kind = {"bool": "check", "int": "number", "float": "number"}.get(field.kind, "text")
    value: Any = given.get(field.name, field.default)
    if kind == "check":
        value = field.name in given if given else field.default
    return Input(
        name=field.name,
        kind=kind,
        label=field.name.replace("_", " ").capitalize(),
        hint=field.doc,
        value="" if value is None else value,
        required=field.required,
        choices=choices,
    )


def body_of(posted: QueryDict, fields: Sequence[Field]) -> dict[str, Any]:
    """A posted form as the body the API takes. What is no number stays text, to be refused by name there."""
    body: dict[str, Any] = {}
    for field in fields:
        raw = posted.get(field.name, "").strip()
        if field.kind == "bool":
            body[field.name] = field.name in posted
        elif raw:
            body[field.name] = number(raw, field.kind) if field.kind in {"int", "float"} else raw
    return body


def number(raw: str, kind: str) -> int | float | str:
    try:
        return int(raw) if kind == "int" else float(raw)
    except ValueError:
        return raw
