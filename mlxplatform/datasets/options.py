"""How a run behaves beside its template: model, target, seed, filters. Checked before anything is stored."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from mlxplatform.datasets.filters.settings import Filters, parse_filters
from mlxplatform.datasets.inputs import bad
from mlxplatform.datasets.templates.base import Template

#: Most rows one run may be asked for.
MAX_ROWS = 1_000_000
#: Rounds over the sources at most when a number of rows was asked for, and rounds in a row that may bring nothing new.
MAX_ROUNDS, FRUITLESS_ROUNDS = 20, 2


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """``rows`` None takes whatever the sources give; a number goes on until that many are accepted."""

    model: str = ""
    rows: int | None = None
    seed: int = 0
    temperature: float | None = None
    top_p: float | None = None
    valid_fraction: float = 0.1
    filters: Filters = Filters()
    #: Sources to take at most (previews).
    limit: int | None = None
    #: Jobs whose finished calls may be used again.
    ancestors: list[str] = []


def stored(raw: Any) -> Options:
    """Options as kept in SQL."""
    return msgspec.convert(raw, Options)


def dump(options: Options) -> dict[str, Any]:
    return msgspec.to_builtins(options)


def parse(template: Template, body: dict[str, Any]) -> Options:
    """The options of a submission.

    Raises:
        Refusal: a value of the wrong type or out of range, by field name.
    """
    return Options(
        model=_model(body),
        rows=_whole(body, "rows", 1, MAX_ROWS),
        seed=secrets.randbelow(2**31) if (seed := _whole(body, "seed", 0, 2**31 - 1)) is None else seed,
        temperature=_real(body, "temperature", 0, 2),
        top_p=_real(body, "top_p", 0, 1),
        valid_fraction=0.1 if (fraction := _real(body, "valid_fraction", 0, 0.5)) is None else fraction,
        filters=parse_filters(template, body.get("filters")),
    )


#: Options by the names an order may say them under.
_SAID = {name: (name,) for name in ("rows", "seed", "temperature", "top_p", "valid_fraction", "filters")} | {
    "model": ("model", "model_name")
}


def continued(options: Options, before: Options, body: dict[str, Any]) -> Options:
    """Options of an order that continues a version: what it does not say is as it was."""
    unsaid = {option: getattr(before, option) for option, names in _SAID.items() if not any(name in body for name in names)}
    return msgspec.structs.replace(options, **unsaid)


def _model(body: dict[str, Any]) -> str:
    raw = body.get("model", body.get("model_name"))
    if raw is None or raw == "local":
        return ""
    if not isinstance(raw, str):
        raise bad("model", "model must be the id of a model")
    return raw.strip()


def _whole(body: dict[str, Any], name: str, low: int, high: int) -> int | None:
    raw = body.get(name)
    if raw is None:
        return None
    if isinstance(raw, bool) or not isinstance(raw, int) or not low <= raw <= high:
        raise bad(name, f"{name} must be a whole number from {low} to {high}")
    return raw


def _real(body: dict[str, Any], name: str, low: float, high: float) -> float | None:
    raw = body.get(name)
    if raw is None:
        return None
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not low <= raw <= high:
        raise bad(name, f"{name} must be a number from {low} to {high}")
    return float(raw)
