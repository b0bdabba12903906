"""Verdicts on one row by itself: shape, length, language, refusals, personal data, schema."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlxplatform.datasets import rowtext, schemas
from mlxplatform.datasets.filters.language import guess
from mlxplatform.datasets.filters.repetition import is_repetitive
from mlxplatform.datasets.filters.settings import Filters
from mlxplatform.datasets.templates.base import Template


@dataclass(frozen=True)
class Verdict:
    """``reason`` empty: kept. ``notes`` are kept with the row either way (PII kinds, language)."""

    reason: str = ""
    detail: str = ""
    notes: dict[str, Any] = field(default_factory=dict)


_REFUSAL = re.compile(
    r"^\W*(?:i(?:'|’)?m (?:very |so |really )?sorry|i am sorry|sorry,|i apologi[sz]e"
    r"|i (?:can(?:no|')?t|can’t|am unable to|am not able to|won(?:'|’)t)"
    r"|as an? (?:ai|artificial intelligence|(?:large )?language model)|es tut mir leid|je suis désolé|lo siento)"
    r"|\bas an? (?:ai|large language) (?:language )?model\b",
    re.IGNORECASE,
)

# Each begins where nothing of its kind came before, or is short: on a row of megabytes a pattern that is tried from every
# character of a long run would not come back.
_PII = {
    "email": re.compile(r"(?<![\w.+-])[\w.+-]+@(?:[\w-]+\.)+[a-z]{2,}\b", re.IGNORECASE),
    "phone": re.compile(r"(?<![\w.])\+?\d{1,3}[ (.-]{1,2}\d{2,4}[) .-]{1,2}\d{3,4}[ .-]?\d{2,4}\b"),
    "ip_address": re.compile(r"\b(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)\b"),
    "iban": re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,4})?\b"),
    "us_ssn": re.compile(r"\b(?!000|666|9\d\d)\d{3}-(?!00)\d{2}-(?!0000)\d{4}\b"),
    "secret": re.compile(r"\b(?:sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|AKIA[0-9A-Z]{16}|hf_[A-Za-z0-9]{30,})\b"),
}
_CARD = re.compile(r"(?<![\d.])(?:\d[ -]?){12,18}\d(?![\d.])")


def judge_row(row: Mapping[str, Any], filters: Filters, template: Template, cut: Collection[str] = ()) -> Verdict:
    """The first reason to drop the row, if any. ``cut`` are the ends of texts that the token limit cut off."""
    notes: dict[str, Any] = {}
    if filters.pii != "off":
        kinds = personal_data(rowtext.everything(row))
        if kinds:
            notes["pii"] = kinds
            if filters.pii == "drop":
                return Verdict("personal_data", ", ".join(kinds), notes)
    size = rowtext.length(row)
    if filters.min_chars and size < filters.min_chars:
        return Verdict("too_short", f"{size} characters", notes)
    if filters.max_chars and size > filters.max_chars:
        return Verdict("too_long", f"{size} characters", notes)
    said = rowtext.answered(row)
    check_refusal = filters.refusals if filters.refusals is not None else template.needs_llm
    if check_refusal and is_refusal(said):
        return Verdict("refusal", said[:120], notes)
    if filters.complete and (end := next((end for end in cut if _ends_with(row, end)), "")):
        return Verdict("cut_off", f"…{end}", notes)
    if filters.repetition and is_repetitive(said or rowtext.asked(row)):
        return Verdict("repetitive", said[:120], notes)
    if filters.languages:
        language = guess(said or rowtext.asked(row))
        notes["language"] = language
        if language not in filters.languages and language != "und":
            return Verdict("language", language, notes)
    if filters.schema is not None:
        problem = schemas.problem(said, filters.schema)
        if problem:
            return Verdict("schema", problem, notes)
    return Verdict(notes=notes)


def _ends_with(row: Mapping[str, Any], end: str) -> bool:
    return any(text.rstrip().endswith(end) for _, text in rowtext.turns(row))


def is_refusal(text: str) -> bool:
    """Whether an answer declines. Looks at how it begins, and for a model speaking of itself as one."""
    return bool(_REFUSAL.search(text[:400]))


def personal_data(text: str) -> list[str]:
    """Kinds of personal data that seem to occur. Patterns only: a flag for a person, no promise."""
    found = [kind for kind, pattern in _PII.items() if pattern.search(text)]
    if any(_luhn(re.sub(r"\D", "", match.group())) for match in _CARD.finditer(text)):
        found.append("card_number")
    return found


def _luhn(digits: str) -> bool:
    if len(set(digits)) < 2:
        return False
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if place % 2 else 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0
