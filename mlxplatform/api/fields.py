"""Request fields as data: what each is, how it is checked, and what becomes of it.

A protocol declares a table of fields; :func:`read_fields` checks a body against it. Every field is honoured, refused
with its name, or ignored and said so: unknown names and ignored ones are reported in a response header, and the
conformance table in the docs is generated from the same tables. Null means absent, as SDKs send it. Nothing here
knows what a field means to a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mlxplatform.inference.contract import Refusal

#: A checked value from a raw one and the name to blame.
Check = Callable[[Any, str], Any]
Effect = Literal["honoured", "refused", "ignored"]

#: Numbers of tokens and the like stay within what the engine's counters hold.
MAX_COUNT = 2**31 - 1
INT64 = 2**63
#: Names shown back to a client are cut to this length.
SHOWN = 60


@dataclass(frozen=True)
class Field:
    """One field of a protocol. ``note`` completes the docs table; ``neutral`` are values a refused field may have."""

    name: str
    check: Check
    effect: Effect = "honoured"
    note: str = ""
    required: bool = False
    neutral: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Fields:
    """Checked values by name (absent ones are missing) and the names that had no effect."""

    values: Mapping[str, Any]
    ignored: tuple[str, ...]

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


Table = Mapping[str, Field]


def described(check: Check, **schema: Any) -> Check:
    """The check with the JSON Schema that documents it."""
    check.schema = schema  # type: ignore[attr-defined]
    return check


def schema_of(check: Check) -> dict[str, Any]:
    """The schema of a check, {} where its own words in the docs must do."""
    found: dict[str, Any] = getattr(check, "schema", {})
    return found


def table(*fields: Field) -> Table:
    return {field.name: field for field in fields}


def read_fields(body: Mapping[str, Any], fields: Table) -> Fields:
    """Check every field of a body.

    Raises:
        Refusal: 400 naming the field and what is allowed.
    """
    values: dict[str, Any] = {}
    ignored: list[str] = []
    for name, raw in body.items():
        field = fields.get(name)
        if field is None:
            ignored.append(name)
        elif raw is not None:
            if field.effect == "refused" and raw not in field.neutral:
                raise Refusal(400, "unsupported_parameter", f"'{name}' is not supported here. {field.note}".strip(), param=name)
            checked = field.check(raw, name)
            if field.effect == "ignored":
                ignored.append(name)
            else:
                values[name] = checked
    for field in fields.values():
        if field.required and field.name not in values:
            raise missing(field.name)
    return Fields(values, tuple(ignored))


def honoured(name: str, check: Check, note: str = "", *, required: bool = False) -> Field:
    return Field(name, check, "honoured", note, required)


def ignored(name: str, note: str) -> Field:
    return Field(name, anything, "ignored", note)


def refused(name: str, note: str, *neutral: Any) -> Field:
    """A field that only its neutral values may have (null always is one)."""
    return Field(name, anything, "refused", note, neutral=neutral)


def missing(param: str) -> Refusal:
    return Refusal(400, "missing_required_parameter", f"Missing required parameter: '{param}'.", param=param)


def wrong_type(param: str, expected: str, raw: Any) -> Refusal:
    return Refusal(
        400, "invalid_type", f"Invalid type for '{param}': expected {expected}, but got {type_name(raw)} instead.", param=param
    )


def wrong_value(param: str, message: str) -> Refusal:
    return Refusal(400, "invalid_value", f"Invalid value for '{param}': {message}", param=param)


_CONTAINERS: dict[type, str] = {str: "a string", list: "an array", dict: "an object"}


def type_name(raw: Any) -> str:
    """The JSON name of a value's type with its article."""
    if raw is None:
        return "null"
    if isinstance(raw, bool):
        return "a boolean"
    if isinstance(raw, int):
        return "an integer"
    if isinstance(raw, float):
        return "a decimal"
    return _CONTAINERS.get(type(raw), "something else")


def anything(raw: Any, param: str) -> Any:
    return raw


def boolean(raw: Any, param: str) -> bool:
    if not isinstance(raw, bool):
        raise wrong_type(param, "a boolean", raw)
    return raw


def text(longest: int | None = None, *, empty: bool = True) -> Check:
    def check(raw: Any, param: str) -> str:
        if not isinstance(raw, str):
            raise wrong_type(param, "a string", raw)
        if longest is not None and len(raw) > longest:
            raise Refusal(
                400,
                "string_above_max_length",
                f"Invalid '{param}': at most {longest} characters, but got {len(raw)}.",
                param=param,
            )
        if not empty and not raw.strip():
            raise wrong_value(param, "it must not be empty.")
        return raw

    limits = {key: value for key, value in (("maxLength", longest), ("minLength", None if empty else 1)) if value is not None}
    return described(check, type="string", **limits)


def one_of(*allowed: str) -> Check:
    def check(raw: Any, param: str) -> str:
        if not isinstance(raw, str):
            raise wrong_type(param, "a string", raw)
        if raw not in allowed:
            names = ", ".join(f"'{name}'" for name in allowed)
            raise wrong_value(param, f"'{raw[:SHOWN]}'. Supported values are: {names}.")
        return raw

    return described(check, type="string", enum=list(allowed))


def integer(minimum: int = -INT64, maximum: int = INT64 - 1) -> Check:
    def check(raw: Any, param: str) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise wrong_type(param, "an integer", raw)
        return _in_range(raw, param, minimum, maximum, "integer")

    return described(check, type="integer", minimum=minimum, maximum=maximum)


def number(minimum: float = -math.inf, maximum: float = math.inf, *, above: float | None = None) -> Check:
    """A finite number in [minimum, maximum], and greater than ``above`` when given."""

    def check(raw: Any, param: str) -> float:
        if isinstance(raw, bool) or not isinstance(raw, (int, float)):
            raise wrong_type(param, "a number", raw)
        if not -1e308 <= raw <= 1e308:
            raise wrong_value(param, "it must be finite.")
        if above is not None and not raw > above:
            raise Refusal(
                400,
                "decimal_below_min_value",
                f"Invalid '{param}': expected a value > {above:g}, but got {raw:g} instead.",
                param=param,
            )
        return float(_in_range(raw, param, minimum, maximum, "decimal"))

    # OpenAPI 3.0 spells an exclusive bound with a flag.
    limits: dict[str, Any] = {} if above is None else {"minimum": above, "exclusiveMinimum": True}
    limits |= {} if minimum == -math.inf else {"minimum": minimum}
    limits |= {} if maximum == math.inf else {"maximum": maximum}
    return described(check, type="number", **limits)


def _in_range(raw: Any, param: str, minimum: float, maximum: float, kind: str) -> Any:
    # Not written as "raw < minimum": a comparison that a NaN passes must not be the guard.
    if not raw >= minimum:
        raise Refusal(
            400,
            f"{kind}_below_min_value",
            f"Invalid '{param}': {kind} below minimum value. Expected a value >= {minimum}, but got {raw} instead.",
            param=param,
        )
    if not raw <= maximum:
        raise Refusal(
            400,
            f"{kind}_above_max_value",
            f"Invalid '{param}': {kind} above maximum value. Expected a value <= {maximum}, but got {raw} instead.",
            param=param,
        )
    return raw


def mapping(raw: Any, param: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise wrong_type(param, "an object", raw)
    return raw


def array(raw: Any, param: str) -> list[Any]:
    if not isinstance(raw, list):
        raise wrong_type(param, "an array", raw)
    return raw


def list_of(check: Check, *, least: int = 0, most: int | None = None) -> Check:
    def check_list(raw: Any, param: str) -> list[Any]:
        items = array(raw, param)
        if len(items) < least:
            code = "empty_array" if not items else "array_below_min_length"
            raise Refusal(400, code, f"Invalid '{param}': expected at least {least}, but got {len(items)}.", param=param)
        if most is not None and len(items) > most:
            raise Refusal(
                400, "array_above_max_length", f"Invalid '{param}': expected at most {most}, but got {len(items)}.", param=param
            )
        return [check(item, f"{param}[{index}]") for index, item in enumerate(items)]

    limits = {key: value for key, value in (("minItems", least or None), ("maxItems", most)) if value is not None}
    return described(check_list, type="array", items=schema_of(check), **limits)


described(boolean, type="boolean")
described(mapping, type="object")
described(array, type="array", items={})


def metadata(raw: Any, param: str) -> dict[str, str]:
    """Up to 16 pairs of short strings."""
    pairs = mapping(raw, param)
    if len(pairs) > 16:
        raise wrong_value(param, "at most 16 pairs.")
    for key, value in pairs.items():
        if len(key) > 64:
            raise wrong_value(param, "keys have at most 64 characters.")
        if "\0" in key + text(512)(value, f"{param}.{key[:SHOWN]}"):
            raise wrong_value(param, "keys and values hold no NUL character.")
    return pairs


def join_names(names: Iterable[str]) -> str:
    """Field names as a header value: plain ASCII, bounded."""
    safe = ["".join(c for c in name if c.isascii() and (c.isalnum() or c in "_-."))[:SHOWN] for name in names]
    return ", ".join(name for name in safe[:32] if name)
