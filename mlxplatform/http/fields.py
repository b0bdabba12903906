"""Fields of an order: a table of names, types, limits and defaults, and one function that applies it.

An absent field and ``null`` both mean the default. Types are strict ("4" is no number, true is no number),
unknown names are refused, and every refusal names the field and what is allowed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mlxplatform.inference.contract import Refusal

#: Beyond it a whole number of JSON is no floating-point number any more; NaN is not below it either.
_LARGEST = sys.float_info.max

Kind = Literal["int", "float", "bool", "text", "names", "numbers", "object"]


@dataclass(frozen=True)
class Field:
    """One field. ``default`` is also what an absent field gets; ``low`` and ``high`` are inclusive."""

    name: str
    kind: Kind
    default: Any = None
    low: float | None = None
    high: float | None = None
    choices: tuple[Any, ...] = ()
    required: bool = False
    doc: str = ""

    def describe(self) -> dict[str, Any]:
        shown = {"name": self.name, "type": self.kind, "default": self.default, "required": self.required}
        shown["description"] = self.doc
        for name in ("low", "high"):
            if getattr(self, name) is not None:
                shown[{"low": "minimum", "high": "maximum"}[name]] = getattr(self, name)
        return shown | ({"choices": list(self.choices)} if self.choices else {})


def invalid(param: str, message: str) -> Refusal:
    return Refusal(400, "invalid_value", message, param=param)


def read(body: Mapping[str, Any], fields: Iterable[Field], *, ignore: Iterable[str] = (), prefix: str = "") -> dict[str, Any]:
    """A value for every field.

    Raises:
        Refusal: an unknown name, a missing required field, a wrong type or a value out of range.
    """
    table = {field.name: field for field in fields}
    for name in body:
        if name not in table and name not in set(ignore):
            message = f"{prefix}{name} is not known; the fields are {', '.join(table)}."
            raise Refusal(400, "unknown_parameter", message, param=f"{prefix}{name}")
    return {name: _value(field, body.get(name), prefix + name) for name, field in table.items()}


def _value(field: Field, raw: Any, where: str) -> Any:
    if raw is None:
        if field.required:
            raise Refusal(400, "missing_required_parameter", f"{where} is required{_hint(field)}.", param=where)
        return field.default
    value = _CHECKS[field.kind](field, raw, where)
    if field.choices and value not in field.choices:
        raise invalid(where, f"{where} must be one of {', '.join(map(str, field.choices))}.")
    return value


def _hint(field: Field) -> str:
    return f": {field.doc.rstrip('.').lower()}" if field.doc else ""


def _whole(field: Field, raw: Any, where: str) -> int:
    if isinstance(raw, float) and raw.is_integer():
        raw = int(raw)
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise invalid(where, f"{where} must be a whole number{_range(field)}.")
    return int(_within(field, raw, where))


def _number(field: Field, raw: Any, where: str) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not abs(raw) <= _LARGEST:
        raise invalid(where, f"{where} must be a number{_range(field)}.")
    return float(_within(field, raw, where))


def _within(field: Field, value: float, where: str) -> float:
    if (field.low is not None and value < field.low) or (field.high is not None and value > field.high):
        raise invalid(where, f"{where} must be a number{_range(field)}.")
    return value


def _range(field: Field) -> str:
    if field.choices:
        return f", one of {', '.join(map(str, field.choices))}"
    low, high = (None if limit is None else _shown(limit) for limit in (field.low, field.high))
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None:
        return f" of at least {low}"
    return f" of at most {high}" if high is not None else ""


def _shown(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


def _flag(field: Field, raw: Any, where: str) -> bool:
    if not isinstance(raw, bool):
        raise invalid(where, f"{where} must be true or false.")
    return raw


def _text(field: Field, raw: Any, where: str) -> str:
    if not isinstance(raw, str) or "\x00" in raw:
        raise invalid(where, f"{where} must be text.")
    limit = int(field.high or 200)
    if not raw.strip() or len(raw) > limit:
        raise invalid(where, f"{where} must be text of 1 to {limit} characters.")
    return raw


def _names(field: Field, raw: Any, where: str) -> list[str]:
    if not isinstance(raw, list) or not raw or not all(isinstance(item, str) and item for item in raw):
        raise invalid(where, f"{where} must be a list of names.")
    return list(dict.fromkeys(raw))


def _numbers(field: Field, raw: Any, where: str) -> list[int]:
    if not isinstance(raw, list) or not raw or not all(isinstance(item, int) and not isinstance(item, bool) for item in raw):
        raise invalid(where, f"{where} must be a list of whole numbers.")
    return sorted(set(raw))


def _object(field: Field, raw: Any, where: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise invalid(where, f"{where} must be an object.")
    return raw


_CHECKS = {"int": _whole, "float": _number, "bool": _flag, "text": _text, "names": _names, "numbers": _numbers, "object": _object}
