"""Decisions as data: questions over one shared state, how a chat model is asked, and what its numbers mean.

Nothing is generated. The state goes into the system turn, which all questions of a call share (so its prompt cache
is computed once); each question is a user turn that lists its options under letters, and the answer is the model's
probability of each letter as the next token, normalised over the question's own letters. Confidence is
chance-corrected: 0 when all options are equally likely, 1 when one is certain.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mlxplatform.inference.contract import InferenceRequest, Message

#: Options of one question; the letters must stay short.
MAX_OPTIONS = 255
MAX_QUESTIONS = 400
#: Options over all questions of a call.
MAX_TOTAL_OPTIONS = 4096

Kind = Literal["predicate", "choice", "score"]

_INTRODUCTION = "You answer questions about the following input. Answer each question with one of its options only."


@dataclass(frozen=True)
class Option:
    """One possible answer: what the client calls it, and what the model is shown."""

    value: Any
    text: str


@dataclass(frozen=True)
class Question:
    """``key`` is the client's id or name. A predicate has two options, yes first."""

    kind: Kind
    key: str | None
    instructions: str
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Answer:
    """Probabilities in option order; they sum to one."""

    question: Question
    probabilities: tuple[float, ...]

    @property
    def best(self) -> Option:
        return self.question.options[max(range(len(self.probabilities)), key=self.probabilities.__getitem__)]

    @property
    def confidence(self) -> float:
        count = len(self.probabilities)
        return 1.0 if count == 1 else min(1.0, max(0.0, (count * max(self.probabilities) - 1) / (count - 1)))

    @property
    def expected_level(self) -> float:
        return sum(level * probability for level, probability in enumerate(self.probabilities))


def letters(count: int) -> list[str]:
    """Labels of equal length: A..Z, or AA..ZZ when there are more."""
    single = list(string.ascii_uppercase)
    return single[:count] if count <= len(single) else [a + b for a in single for b in single][:count]


def to_request(question: Question, state: str, request_id: str) -> InferenceRequest:
    labels = ["Yes", "No"] if question.kind == "predicate" else letters(len(question.options))
    lines = [f"Question: {question.instructions}", "Options:"]
    lines += [f"{label}. {option.text}" if option.text else label for label, option in zip(labels, question.options, strict=True)]
    lines.append("Answer with the label of one option.")
    return InferenceRequest(
        id=request_id,
        model="",
        kind="score",
        messages=[Message("system", f"{_INTRODUCTION}\n\n{state}"), Message("user", "\n".join(lines))],
        labels=labels,
        template_kwargs={"enable_thinking": False},
    )


def to_answer(question: Question, logprobs: Sequence[float]) -> Answer:
    """Softmax over the question's own labels."""
    highest = max(logprobs)
    weights = [math.exp(value - highest) for value in logprobs]
    total = sum(weights)
    return Answer(question, tuple(weight / total for weight in weights))
