"""The engine's work that is not generation: embeddings and scores, in turns between decode steps.

Interactive orders first, first in first out. A turn is small while sequences decode and large otherwise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from workers.engine.adapters import AdapterRefused, Adapters
from workers.engine.embedding import Embedder
from workers.engine.prefix_cache import PrefixCache
from workers.engine.protocol import Broken, Embed, Mount, Mounted, Report, Score, Step, Unmount, Vectors
from workers.engine.scoring import Scoring

log = structlog.get_logger(__name__)

#: Tokens of one turn while sequences decode, and otherwise.
BUSY_TOKENS, FREE_TOKENS = 128, 2048


class _Embedding:
    """One order for vectors, worked off in batches of similar length."""

    def __init__(self, order: Embed):
        self.order = order
        self.left = sorted(range(len(order.inputs)), key=lambda index: len(order.inputs[index]))
        self.vectors: dict[int, bytes] = {}

    def take(self, tokens: int) -> list[int]:
        """The next texts, padded to at most ``tokens`` in all; at least one."""
        count = 1
        while count < len(self.left) and (count + 1) * len(self.order.inputs[self.left[count]]) <= tokens:
            count += 1
        taken, self.left = self.left[:count], self.left[count:]
        return taken


class Side:
    """``busy`` tells whether sequences decode now."""

    def __init__(
        self,
        model: Any,
        embedder: Embedder | None,
        prefix: PrefixCache | None,
        busy: Callable[[], bool],
        adapters: Adapters | None = None,
    ):
        self._adapters = adapters
        self._answers: list[Report] = []
        self._model, self._embedder, self._prefix, self._busy = model, embedder, prefix, busy
        self._lines: dict[str, deque[_Embedding | Scoring | Score]] = {"interactive": deque(), "row": deque()}
        self.embedded_texts = self.scored = 0

    @property
    def idle(self) -> bool:
        return not any(self._lines.values())

    def order(self, order: Embed | Score | Mount | Unmount) -> None:
        if isinstance(order, Mount):
            self._answers.append(self._mount(order))
        elif isinstance(order, Unmount):
            if self._adapters is not None:
                self._adapters.unmount(order.name)
        else:
            self._lines[order.priority].append(_Embedding(order) if isinstance(order, Embed) else order)

    def _mount(self, order: Mount) -> Mounted:
        if self._adapters is None:
            return Mounted(order.name, "This model takes no adapters.", {})
        try:
            return Mounted(order.name, "", self._adapters.mount(order.name, Path(order.path)))
        except AdapterRefused as refused:
            return Mounted(order.name, str(refused), {})

    def answers(self) -> list[Report]:
        """What was answered at once; due whether or not the engine may work."""
        answers, self._answers = self._answers, []
        return answers

    def cancel(self, seq: int) -> None:
        for line in self._lines.values():
            for work in [work for work in line if _seq(work) == seq]:
                line.remove(work)

    def step(self) -> list[Report]:
        """One turn."""
        line = self._lines["interactive"] or self._lines["row"]
        if not line:
            return []
        work = line[0]
        tokens = BUSY_TOKENS if self._busy() else FREE_TOKENS
        try:
            report = self._turn(line, tokens)
        except Exception:  # one order's failure must not end the engine's loop
            log.exception("engine.side_failed", seq=_seq(work))
            line.popleft()
            return [Step([], broken=[Broken(_seq(work), "engine_failed", "The engine failed on this request.", 500)])]
        if report is None:
            return []
        line.popleft()
        return [report]

    def _turn(self, line: deque[Any], tokens: int) -> Report | None:
        work = line[0]
        if isinstance(work, _Embedding):
            return self._embed(work, tokens)
        if self._model is None:
            return _unsupported(work.seq, "This model only makes embeddings; it cannot score answers.")
        if isinstance(work, Score):
            try:
                slot = self._adapters.slot(work.adapter) if self._adapters is not None else 0
            except AdapterRefused as refused:
                return Step([], broken=[Broken(work.seq, "adapter_mismatch", str(refused), 400, "adapter")])
            work = line[0] = Scoring(work, self._model, self._prefix, slot)
        if self._adapters is not None:
            self._adapters.select([work.slot])
        report = work.step(tokens)
        self.scored += report is not None
        return report

    def _embed(self, work: _Embedding, tokens: int) -> Report | None:
        order, embedder = work.order, self._embedder
        if embedder is None:
            return _unsupported(order.seq, "This model does not make embeddings.")
        if not all(order.inputs) or not order.inputs:
            return Step([], broken=[Broken(order.seq, "empty_input", "An input is empty.", 400, "input")])
        if self._adapters is not None:
            self._adapters.select([0])
        taken = work.take(tokens)
        vectors = embedder.embed([order.inputs[index] for index in taken], order.dimensions)
        work.vectors.update(zip(taken, vectors, strict=True))
        self.embedded_texts += len(taken)
        if work.left:
            return None
        size = min(order.dimensions or embedder.hidden, embedder.hidden)
        ordered = [work.vectors[index] for index in range(len(order.inputs))]
        return Vectors(order.seq, ordered, size, sum(len(text) for text in order.inputs))

    def stats(self) -> dict[str, float]:
        return {"side_waiting": sum(map(len, self._lines.values())), "embedded_texts": self.embedded_texts, "scored": self.scored}


def _seq(work: _Embedding | Scoring | Score) -> int:
    return work.seq if isinstance(work, Score) else work.order.seq


def _unsupported(seq: int, message: str) -> Step:
    return Step([], broken=[Broken(seq, "unsupported_model", message, 400, "model")])
