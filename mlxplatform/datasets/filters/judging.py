"""A model's score of a row, from 1 to 10, against a rubric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxplatform.datasets import rowtext
from mlxplatform.datasets.filters.rowwise import Verdict
from mlxplatform.datasets.filters.settings import Judge
from mlxplatform.datasets.templates.base import Ask, system, user
from mlxplatform.datasets.templates.parsing import score
from mlxplatform.inference.contract import Constraint

#: Tokens of a score with a short reason, and temperature: judging is no occasion for variety.
SCORE_TOKENS, SCORE_TEMPERATURE = 60, 0.0
LOWEST, HIGHEST = 1, 10
#: The grade stands first, whatever the model would rather begin with.
GRADE_FIRST = Constraint("regex", r"(10|[1-9])([ .,:;/\n-][\s\S]*)?")


async def judge(ask: Ask, step: str, row: Mapping[str, Any], settings: Judge) -> Verdict:
    shown = "\n\n".join(f"[{role}]\n{text}" for role, text in rowtext.turns(row))
    answer = await ask(
        step,
        [
            system(f"You grade training examples from {LOWEST} to {HIGHEST} by this rubric: {settings.rubric}."),
            user(f"{shown}\n\nReply with the grade as a number first, then one short reason."),
        ],
        max_tokens=SCORE_TOKENS,
        temperature=SCORE_TEMPERATURE,
        constraint=GRADE_FIRST,
    )
    grade = score(answer.text, LOWEST, HIGHEST)
    notes: dict[str, Any] = {"judge": grade, "judge_reason": answer.text[:300]}
    if grade is None:
        return Verdict("judge_unreadable", answer.text[:120], notes)
    if grade < settings.threshold:
        return Verdict("judge_below", f"{grade:g} is under {settings.threshold:g}", notes)
    return Verdict(notes=notes)
