"""Whether validation rows are among the training rows: the same row, or the same question."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mlxplatform.datasets import rowtext


def leaks(train: Iterable[Mapping[str, Any]], held_out: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many held-out rows repeat a training row, and how many its question with another answer."""
    rows: set[bytes] = set()
    questions: set[str] = set()
    for row in train:
        rows.add(rowtext.digest(row))
        if asked := rowtext.normalised(rowtext.asked(row)):
            questions.add(asked)
    same_row = same_question = 0
    for row in held_out:
        if rowtext.digest(row) in rows:
            same_row += 1
        elif (asked := rowtext.normalised(rowtext.asked(row))) and asked in questions:
            same_question += 1
    return {"same_row": same_row, "same_question": same_question}
