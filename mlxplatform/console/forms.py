"""Forms drawn from the field tables that the orders of jobs are checked with; nothing is validated twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.http import QueryDict

from mlxplatform.http.fields import Field


class Choice(NamedTuple):
    """One of a select's options: what is sent, and what is read."""

    value: str
    label: str


@dataclass(frozen=True)
class Input:
    """One control of a form: ``kind`` is text, number, check or select."""

    name: str
    kind: str
    label: str
    hint: str
    value: Any
    required: bool
    choices: Sequence[Choice]


Offered = Mapping[str, Sequence[str | Choice]]


def inputs_for(fields: Sequence[Field], given: QueryDict, *, choices: Offered | None = None) -> list[Input]:
    """The controls of an order, filled with what was given before."""
    return [_input(field, given, (choices or {}).get(field.name, field.choices)) for field in fields]


def _input(field: Field, given: QueryDict, choices: Sequence[str | Choice]) -> Input:
    if choices:
        kind = "select"
    else:
        kind = {"bool": "check", "int": "number", "float": "number"}.get(field.kind, "text")
    value: Any = given.get(field.name, field.default)
    if kind == "check":
        value = field.name in given if given else field.default
    elif kind == "select" and value is not None:
        value = str(value)
    return Input(
        name=field.name,
        kind=kind,
        label=field.name.replace("_", " ").capitalize(),
        hint=field.doc,
        value="" if value is None else value,
        required=field.required,
        choices=_options(choices, value),
    )


def _options(choices: Sequence[str | Choice], value: Any) -> list[Choice]:
    """What is offered; and what was given beside it, so that a form never sends something else than it was filled with."""
    options = [choice if isinstance(choice, Choice) else Choice(str(choice), str(choice)) for choice in choices]
    if options and value and value not in {option.value for option in options}:
        options.insert(0, Choice(value, value))
    return options


def body_of(posted: QueryDict, fields: Sequence[Field]) -> dict[str, Any]:
    """A posted form as the body the API takes. What is no number stays text, to be refused by name there."""
    body: dict[str, Any] = {}
    for field in fields:
        raw = posted.get(field.name, "").strip()
        if field.kind == "bool":
            body[field.name] = field.name in posted
        elif raw:
            body[field.name] = _value(raw, field.kind)
    return body


def _value(raw: str, kind: str) -> Any:
    """Lists are written with commas or spaces."""
    if kind in {"names", "numbers"}:
        parts = raw.replace(",", " ").split()
        return parts if kind == "names" else [number(part, "int") for part in parts]
    return number(raw, kind) if kind in {"int", "float"} else raw


def number(raw: str, kind: str) -> int | float | str:
    try:
        return int(raw) if kind == "int" else float(raw)
    except ValueError:
        return raw
