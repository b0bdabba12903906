"""Several tokens by one pass of the model, for a row that runs alone: guessed ones, and ones its grammar leaves no choice.

Both give what one token at a time would have given. A guess holds when it is what the row's own sampler draws at that
step; a token the grammar forces holds because nothing else may stand there. In a batch nobody is ahead: rows advance
together.
"""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx

from workers.engine.batch import DEAD_END, Row
from workers.engine.constraints import GrammarFault, GrammarMask
from workers.engine.drafting import Drafting, Pace
from workers.engine.sampling import RowSampler, sample

#: Most tokens fed at once that a grammar forces; bounds the stall of a newcomer.
LONGEST_JUMP = 64


def _drawn(logits: mx.array, sampler: RowSampler) -> list[int]:
    """What the sampler draws at its present step and the ones behind it, one per row of ``logits``."""
    if sampler.greedy:
        return mx.argmax(logits, axis=-1).tolist()  # type: ignore[return-value]
    steps = [replace(sampler, step=sampler.step + index) for index in range(logits.shape[0])]
    return sample(logits, steps).tolist()  # type: ignore[return-value]


class Guessed:
    """Speculation on one row without processors, constraint or log-probabilities."""

    def __init__(self, row: Row, drafting: Drafting):
        self._row, self._drafting = row, drafting
        self._guesser, self._pace = drafting.guesser(), Pace()

    def guess(self, newest: int) -> list[int]:
        if not self._pace.due():
            return []
        return self._guesser.guess([*self._row.history, newest], self._drafting.most)

    def choose(self, logits: mx.array, fed: list[int]) -> list[int]:
        drawn = _drawn(logits, self._row.sampler)
        held = 0
        while held + 1 < len(fed) and drawn[held] == fed[held + 1]:
            held += 1
        self._row.sampler.step += held + 1
        self._pace.held(held)
        self._drafting.count(len(fed) - 1, held)
        return drawn[: held + 1]

    def undo(self, count: int) -> None:
        self._row.sampler.step -= count


class Forced:
    """Tokens that the grammar of a forced tool call determines: names, punctuation, required keys."""

    def __init__(self, row: Row, mask: GrammarMask):
        self._row, self._mask = row, mask

    def guess(self, newest: int) -> list[int]:
        return self._mask.forced(newest)[:LONGEST_JUMP]

    def choose(self, logits: mx.array, fed: list[int]) -> list[int]:
        jumped = fed[1:]
        try:
            own = self._mask.after(jumped, logits[-1:])
        except GrammarFault:
            self._row.fault = DEAD_END
            own = logits[-1:]
        self._row.sampler.step += len(jumped)
        (last,) = _drawn(own, self._row.sampler)
        self._row.sampler.step += 1
        return [*jumped, last]

    def undo(self, count: int) -> None:
        self._row.sampler.step -= count
        self._mask.back(count)
