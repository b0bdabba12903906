"""Guessing what comes next, so that one pass of the model settles several tokens of a sequence that runs alone.

A guess never changes an answer: every guessed token is compared with what the model itself chooses there, from the
same seed and step. Two guessers: the text's own repetitions (free), and a smaller model of the same vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

from workers.engine.batch import make_prompt_cache, trim_prompt_cache
from workers.engine.prefix_tree import shared_length

#: Tokens that must repeat before what followed them is guessed, longest first.
_LENGTHS = (4, 3, 2)
#: Steps without guessing after a guess of which nothing held, doubled each time up to the most.
PAUSE, LONGEST_PAUSE = 1, 32


class Guesser(Protocol):
    """Guesses for one sequence."""

    def guess(self, tokens: list[int], most: int) -> list[int]:
        """Up to ``most`` tokens that may follow ``tokens``; none when it has no idea."""
        ...


class Repetition:
    """What followed the last time these tokens were said. Knows one sequence, which only grows."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def guess(self, tokens: list[int], most: int) -> list[int]:
        # The end itself stays out of the index, else it would be found as its own last occurrence.
        for end in range(self._indexed, len(tokens)):
            for length in _LENGTHS:
                if end >= length:
                    self._seen[tuple(tokens[end - length : end])] = end
        self._indexed = max(self._indexed, len(tokens))
        for length in _LENGTHS:
            at = self._seen.get(tuple(tokens[-length:])) if len(tokens) > length else None
            if at is not None:
                return tokens[at : at + most]
        return []


class DraftModel:
    """A smaller model; its cache follows whichever sequence runs alone."""

    def __init__(self, model: Any):
        self._model = model
        self._cache: list[Any] = []
        self._fed: list[int] = []

    def guess(self, tokens: list[int], most: int) -> list[int]:
        kept = min(shared_length(self._fed, tokens), len(tokens) - 1)
        if not self._cache or kept == 0:
            self._cache, kept = make_prompt_cache(self._model), 0
        elif len(self._fed) > kept:
            trim_prompt_cache(self._cache, len(self._fed) - kept)
        self._fed = list(tokens)
        newest = mx.array([tokens[kept:]])
        guessed: list[mx.array] = []
        for _ in range(most):
            newest = mx.argmax(self._model(newest, cache=self._cache)[:, -1], axis=-1)[:, None]
            guessed.append(newest)
        found: list[int] = mx.concatenate(guessed, axis=1)[0].tolist()  # type: ignore[assignment]
        self._fed += found[:-1]
        return found


@dataclass
class Pace:
    """When guessing is worth its price: after guesses of which nothing held it rests, longer each time."""

    rest: int = 0
    pause: int = PAUSE

    def due(self) -> bool:
        self.rest = max(0, self.rest - 1)
        return not self.rest

    def held(self, count: int) -> None:
        if count:
            self.pause = PAUSE
        else:
            self.rest, self.pause = self.pause + 1, min(LONGEST_PAUSE, self.pause * 2)


@dataclass
class Drafting:
    """How this engine guesses: ``model`` None is by repetition; ``most`` tokens at once. Counts what came of it."""

    most: int
    model: DraftModel | None = None
    weight_bytes: int = 0
    guessed: int = 0
    held: int = 0

    def guesser(self) -> Guesser:
        return Repetition() if self.model is None else self.model

    def count(self, guessed: int, held: int) -> None:
        self.guessed += guessed
        self.held += held
