"""What a step has to say, held back for a moment when nobody would notice, and said together.

On a model that decodes hundreds of steps a second, a report for each of them costs both processes, and everybody
behind them, more than the steps do. The first words of a chat, its end and its failures are said at once; the middle of
answers, and whatever rows say, at most once in :data:`HOLD`. A model slower than that is never held back. A child that
dies with something held has lost that much work and nothing else: its successor begins from what was said.
Knows reports and a clock, no mlx.
"""

from __future__ import annotations

from workers.engine.protocol import Broken, Ended, Progress, Run, Start, Step, Token

#: Seconds between two messages about the middle of answers: a picture on a screen lasts as long.
HOLD = 0.016
#: Tokens of a chat that are said at once.
FIRST_TOKENS = 3


class Gathering:
    """Steps in, fewer steps out. Used by the engine's main thread only."""

    def __init__(self) -> None:
        #: How many of its next tokens a sequence wants said at once, for those that still want it.
        self._eager: dict[int, int] = {}
        self._rows: set[int] = set()
        #: Those whose tokens come with log-probabilities.
        self._detailed: set[int] = set()
        self._tokens: list[Token] = []
        self._runs: dict[int, list[int]] = {}
        self._progress: dict[int, Progress] = {}
        self._ended: list[Ended] = []
        self._broken: list[Broken] = []
        self._said_at = 0.0

    def begin(self, order: Start) -> None:
        if order.priority == "row":
            self._rows.add(order.seq)
        else:
            self._eager[order.seq] = FIRST_TOKENS
        if order.logprobs is not None:
            self._detailed.add(order.seq)

    def forget(self, seq: int) -> None:
        """It was cancelled: nobody waits for the rest."""
        self._leave(seq)
        self._tokens = [token for token in self._tokens if token.seq != seq]
        self._runs.pop(seq, None)
        self._progress.pop(seq, None)

    def add(self, step: Step, now: float) -> Step | None:
        """Take a step's news; what there is to be said now, if anything."""
        urgent = now - self._said_at >= HOLD
        for token in step.tokens:
            if token.seq in self._detailed:
                self._tokens.append(token)
            else:
                self._runs.setdefault(token.seq, []).append(token.id)
            if self._eager and (left := self._eager.get(token.seq)):
                self._eager[token.seq] = left - 1
                urgent = True
        for progress in step.progress:
            self._progress[progress.seq] = progress
            urgent = urgent or progress.seq not in self._rows
        for seq in [ended.seq for ended in step.ended] + [broken.seq for broken in step.broken]:
            urgent = urgent or seq not in self._rows
            self._leave(seq)
        self._ended += step.ended
        self._broken += step.broken
        return self.all(now) if urgent else None

    def all(self, now: float) -> Step | None:
        """Whatever is held: also for when no step follows soon."""
        if not (self._tokens or self._runs or self._progress or self._ended or self._broken):
            return None
        runs = [Run(seq, ids) for seq, ids in self._runs.items()]
        step = Step(self._tokens, list(self._progress.values()), self._ended, self._broken, runs)
        self._tokens, self._runs, self._progress, self._ended, self._broken = [], {}, {}, [], []
        self._said_at = now
        return step

    def _leave(self, seq: int) -> None:
        self._eager.pop(seq, None)
        self._rows.discard(seq)
        self._detailed.discard(seq)
