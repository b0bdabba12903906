"""Which filters a run applies, as data; parsed strictly from what a person sends."""

from __future__ import annotations

from typing import Any

import msgspec

from mlxplatform.datasets import schemas
from mlxplatform.datasets.filters.language import codes as language_codes
from mlxplatform.datasets.templates.base import Template
from mlxplatform.inference.contract import Refusal

PII_MODES = ("off", "flag", "drop")


class Judge(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A model that scores each row from 1 to 10; rows below ``threshold`` are dropped."""

    rubric: str = "helpful, correct, complete and clear"
    threshold: float = 7
    model: str = ""


class Filters(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """``None`` for ``distinct`` and ``refusals`` means: as the template needs it (on where a model writes)."""

    distinct: bool | None = None
    near_duplicates: float | None = None
    pool_limit: float | None = None
    min_chars: int = 0
    max_chars: int = 0
    languages: list[str] = []
    refusals: bool | None = None
    repetition: bool = False
    complete: bool = False
    pii: str = "off"
    schema: dict[str, Any] | None = None
    judge: Judge | None = None


_RANGES: dict[str, tuple[float, float]] = {
    "near_duplicates": (0.3, 1.0),
    "pool_limit": (0.0, 1.0),
    "min_chars": (0, 10_000_000),
    "max_chars": (0, 10_000_000),
}


def parse_filters(template: Template, raw: Any) -> Filters:
    """Raises Refusal naming the field that cannot be used."""
    if raw is None:
        return Filters()
    if not isinstance(raw, dict):
        raise _bad("filters", "filters must be an object")
    for name in raw:
        if name not in Filters.__struct_fields__:
            raise _bad(f"filters.{name}", f"{name} is not a filter; the filters are {', '.join(Filters.__struct_fields__)}")
    try:
        filters = msgspec.convert(raw, Filters)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        name = path.removeprefix(".").rstrip("`").split(".")[0].split("[")[0] or "judge"
        raise _bad(f"filters.{name}", f"{name}: {text}") from None
    for name, (low, high) in _RANGES.items():
        value = getattr(filters, name)
        if value is not None and not low <= value <= high:
            raise _bad(f"filters.{name}", f"{name} must be from {low:g} to {high:g}")
    if filters.max_chars and filters.min_chars > filters.max_chars:
        raise _bad("filters.min_chars", "min_chars must not exceed max_chars")
    if filters.pii not in PII_MODES:
        raise _bad("filters.pii", f"pii must be one of {', '.join(PII_MODES)}")
    if filters.judge is not None and not 1 <= filters.judge.threshold <= 10:
        raise _bad("filters.judge", "judge.threshold must be from 1 to 10")
    known = language_codes()
    unknown = [language for language in filters.languages if language not in known]
    if unknown:
        raise _bad("filters.languages", f"{unknown[0][:40]!r} cannot be told; the languages are {', '.join(known)}")
    if filters.schema is not None:
        try:
            schemas.check(filters.schema)
        except schemas.BadSchema as error:
            raise _bad("filters.schema", str(error)) from None
    return filters


def _bad(param: str, message: str) -> Refusal:
    return Refusal(400, "invalid_value", message, param=param)
