"""How a stage asks a model: whole batches of structured questions, below interactive priority, in order.

A stage hands over every question it has at once and gets one answer for each, in the same order. Every
answer is constrained by a schema while it is decoded, so a small model cannot break the format; what does
not parse all the same (cut short, or a model without constraints) is an answer with an error. Nothing is
retried here: a call that failed has failed, visibly.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jsonschema
import msgspec

from mlxplatform.inference.contract import Constraint, InferenceRequest, Message, Sampling
from mlxplatform.jobs.context import JobFailed
from mlxplatform.rows.contract import RowRequest, RowResult
from mlxplatform.rows.pool import Context
from mlxplatform.rows.run import run_rows


@dataclass(frozen=True)
class Ask:
    """One question. ``subject`` says what it is about, for logs; ``schema`` describes the JSON of the answer."""

    stage: str
    subject: str
    system: str
    prompt: str
    schema: dict[str, Any]
    max_tokens: int = 512

    @property
    def key(self) -> str:
        """The same words have the same key, so an interrupted run finds its finished answers."""
        told = msgspec.json.encode([self.system, self.prompt, self.schema, self.max_tokens], order="deterministic")
        return f"{self.stage}:{hashlib.blake2b(told, digest_size=16).hexdigest()}"


@dataclass(frozen=True)
class Answer:
    """``value`` follows the schema, or is None and ``error`` says why."""

    value: Any = None
    error: str = ""


class Completions(Protocol):
    """Whoever answers. ``model`` names it: decisions made by another model may be reconsidered. ``tokens`` it has written."""

    model: str
    calls: int
    tokens: int

    def ask(self, asks: Sequence[Ask]) -> list[Answer]: ...


def parse(ask: Ask, text: str) -> Answer:
    """An answer's text as the value its schema promises."""
    try:
        value = msgspec.json.decode(text.encode("utf-8", "replace"))
        jsonschema.validate(value, ask.schema)
    except (msgspec.DecodeError, RecursionError):
        return Answer(error="the answer is not JSON")
    except jsonschema.ValidationError as error:
        return Answer(error=f"the answer does not fit: {error.message[:120]}")
    return Answer(value)


class RowCompletions:
    """Answers from the platform's own models, as rows of the job that runs the synthesis."""

    def __init__(self, ctx: Context, model: str, project: str):
        self.ctx = ctx
        self.model = model
        self.project = project
        self.calls = 0
        self.tokens = 0

    def ask(self, asks: Sequence[Ask]) -> list[Answer]:
        """One answer per question, in order. No questions, no call.

        Raises:
            JobFailed: the engine could not answer at all; finished answers are kept for the next attempt.
        """
        unique = {ask.key: ask for ask in asks}
        if not unique:
            return []
        self.calls += len(unique)
        results = asyncio.run(self._gather([self._row(place, ask) for place, ask in enumerate(unique.values())]))
        self.tokens += sum(found.output.usage.completion for found in results.values() if found.output and not found.reused)
        return [self._answer(ask, results[ask.key]) for ask in asks]

    def _row(self, place: int, ask: Ask) -> RowRequest:
        request = InferenceRequest(
            id=f"mem_{ask.key.partition(':')[2]}",
            model=self.model,
            priority="row",
            messages=[Message("system", ask.system), Message("user", ask.prompt)],
            sampling=Sampling(temperature=0.0),
            max_tokens=ask.max_tokens,
            constraint=Constraint("json_schema", ask.schema),
            project=self.project,
        )
        return RowRequest(ask.key, place, request)

    async def _gather(self, rows: list[RowRequest]) -> dict[str, RowResult]:
        return {result.key: result async for result in run_rows(self.ctx, rows)}

    def _answer(self, ask: Ask, result: RowResult) -> Answer:
        if result.output is not None:
            return parse(ask, result.output.text)
        error = result.error
        if error is None or error.status >= 500:
            raise JobFailed(error.code if error else "no_answer", error.message if error else "a call has no answer", retry=True)
        return Answer(error=error.message)
