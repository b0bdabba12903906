"""A template's inputs as people send them, checked field by field before anything is stored or queued."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from mlxplatform.datasets.templates.base import Field, Inputs, Template
from mlxplatform.inference.contract import Refusal

#: Places of the message where names are listed.
_LISTED = 12


def coerce(template: Template, given: Any) -> Inputs:
    """Every field of the template with a value of its type; defaults where nothing was sent.

    Raises:
        Refusal: an unknown name, a wrong type, a value out of range, or a required field without a value.
    """
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise bad("inputs", "inputs must be an object with the template's fields")
    refuse_nul(given, "inputs")
    known = {name: field for field in template.fields for name in (field.name, *field.aliases)}
    for name in given:
        if name not in known:
            fields = ", ".join(field.name for field in template.fields[:_LISTED])
            raise bad(f"inputs.{name}", f"{name} is not a field of {template.id}; it has {fields}")
    values: dict[str, Any] = {}
    for field in template.fields:
        present = [given[name] for name in (field.name, *field.aliases) if given.get(name) not in (None, "")]
        values[field.name] = _value(field, present[0] if present else None)
    return values


def refuse_nul(value: Any, where: str = "") -> None:
    """No text of an order holds a NUL character, at any depth: PostgreSQL's texts and JSON cannot.

    Raises:
        Refusal: naming the field.
    """
    if isinstance(value, str):
        if "\x00" in value:
            raise bad(where.replace("\x00", ""), f"{where.rpartition('.')[2] or 'the value'} contains a NUL character")
    elif isinstance(value, dict):
        for key, item in value.items():
            below = f"{where}.{key}" if where else str(key)
            refuse_nul(str(key), below)
            refuse_nul(item, below)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            refuse_nul(item, f"{where}[{place}]")


def bad(param: str, message: str) -> Refusal:
    return Refusal(400, "invalid_value", message, param=param)


def _value(field: Field, raw: Any) -> Any:
    where = f"inputs.{field.name}"
    if raw is None or (isinstance(raw, str) and not raw.strip()):
        if field.required:
            raise Refusal(400, "missing_field", f"{field.name} is required: {field.label.lower()}", param=where)
        if field.type == "json":
            return json.loads(str(field.default)) if field.default else None
        fallback = field.missing if field.missing is not None and raw is None else field.default
        return fallback if fallback is not None else (0 if field.type == "number" else "")
    if field.type == "number":
        return _number(field, raw, where)
    if field.type == "json":
        return _json(raw, where)
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise bad(where, f"{field.name} must be text")
    text = str(raw)
    if field.type == "select" and text not in field.choices:
        raise bad(where, f"{field.name} must be one of {', '.join(field.choices)}")
    return text


def _number(field: Field, raw: Any, where: str) -> int:
    """Whole numbers, also as text; the integer part of a fraction."""
    try:
        if isinstance(raw, bool):
            raise ValueError
        value = float(raw)
        if not math.isfinite(value):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise bad(where, f"{field.name} must be a whole number") from None
    number = math.trunc(value)
    low, high = field.minimum, field.maximum
    if (low is not None and number < low) or (high is not None and number > high):
        limits = [f"at least {low}"] * (low is not None) + [f"at most {high}"] * (high is not None)
        raise bad(where, f"{field.name} must be {' and '.join(limits)}, got {number}")
    return number


def _json(raw: Any, where: str) -> Any:
    if not isinstance(raw, str):
        return raw
    try:
        value = msgspec.json.decode(raw)  # strict: no NaN, no half of a surrogate pair, which no database would take
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad(where, f"not valid JSON: {error}") from None
    refuse_nul(value, where)
    return value
