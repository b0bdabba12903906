"""The filters the dataset wizard offers: the controls, and a posted form as the API's ``filters``.

Nothing is validated here: what is no number stays text, to be refused by name where orders are checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.http import QueryDict

from mlxplatform.datasets.filters.settings import PII_MODES, Judge

#: What a flag's control says for the filter to be on.
DROP = "drop"


@dataclass(frozen=True)
class FilterInput:
    """One control; ``kind`` says how its text becomes a value."""

    name: str
    label: str
    kind: str
    hint: str = ""
    choices: tuple[str, ...] = ()
    value: str = ""


FILTERS = (
    FilterInput("near_duplicates", "Drop near duplicates from this likeness on", "number", "0.3 to 1, such as 0.8; empty: keep"),
    FilterInput("min_chars", "Shortest row, characters", "number"),
    FilterInput("max_chars", "Longest row, characters", "number"),
    FilterInput("languages", "Languages of answers", "list", "such as en, de; empty: any"),
    FilterInput("pii", "Personal data", "choice", "patterns only, no promise", PII_MODES),
    FilterInput("repetition", "Answers that go round in circles", "flag", "small models write them", (DROP, "keep")),
    FilterInput("complete", "Answers that the token limit cut off", "flag", "they teach to stop in mid-sentence", (DROP, "keep")),
    FilterInput("judge", "Let the model grade rows and keep those from this grade on", "judge", "1 to 10; empty: no judge"),
)


def as_form(filters: Mapping[str, Any]) -> dict[str, str]:
    """What the controls say for an order's filters."""
    said: dict[str, str] = {}
    for item in FILTERS:
        value = filters.get(item.name)
        if value is None:
            continue
        if item.kind == "flag":
            said[f"filter_{item.name}"] = DROP if value else ""
        elif item.kind == "list":
            said[f"filter_{item.name}"] = ", ".join(value)
        elif item.kind == "judge":
            # An order leaves out what is as usual.
            said[f"filter_{item.name}"] = f"{value.get('threshold', Judge().threshold):g}"
        else:
            said[f"filter_{item.name}"] = value if isinstance(value, str) else f"{value:g}"
    return said


def kept(filters: Mapping[str, Any]) -> dict[str, Any]:
    """Those of an order's filters that no control offers."""
    return {name: value for name, value in filters.items() if name not in {item.name for item in FILTERS}}


def inputs(given: QueryDict | Mapping[str, str]) -> list[FilterInput]:
    """The controls, filled with what was given before."""
    return [replace(item, value=given.get(f"filter_{item.name}", "")) for item in FILTERS]


def of_form(posted: QueryDict) -> dict[str, Any]:
    """The posted filters as the body the API takes; empty controls are left out."""
    found: dict[str, Any] = {}
    for item in FILTERS:
        raw = posted.get(f"filter_{item.name}", "").strip()
        if not raw or (item.kind == "choice" and raw == item.choices[0]):
            continue
        if item.kind == "flag":
            if raw == DROP:
                found[item.name] = True
            continue
        if item.kind == "list":
            found[item.name] = [part.strip() for part in raw.split(",") if part.strip()]
        elif item.kind == "judge":
            found[item.name] = {"threshold": _number(raw)}
        else:
            found[item.name] = raw if item.kind == "choice" else _number(raw)
    return found


def _number(raw: str) -> int | float | str:
    if raw.isdecimal() and len(raw) < 10:
        return int(raw)
    try:
        return float(raw)
    except ValueError:
        return raw
