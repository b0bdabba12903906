"""Running a model from a block onwards: what the blocks before it said is remembered, not computed again.

Changing one layer changes nothing before its block. The list of blocks that an architecture loops over is changed in
place: those before the one in question answer with what they answered the first time. Whatever architecture it is,
this is only used after it was seen to give the reference exactly; otherwise every block runs every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx import nn

from workers.trainer.allocation import block_of


class _Recording:
    """A block that keeps what it answers."""

    def __init__(self, block: Any):
        self._block = block
        self.answers: list[Any] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        answer = self._block(*args, **kwargs)
        self.answers.append(answer)
        return answer

    def __getattr__(self, name: str) -> Any:  # architectures ask their blocks for masks they need, and the like
        return getattr(self._block, name)


class _Replaying:
    """A block that answers what it answered to the window at hand."""

    def __init__(self, block: Any, answers: Sequence[Any], replay: Replay):
        self._block, self._answers, self._replay = block, answers, replay

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._answers[self._replay.window]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._block, name)


class Replay:
    """The model over fixed windows. ``works`` tells whether blocks can be left out; ``window`` is the one being read."""

    def __init__(self, model: nn.Module, windows: Sequence[mx.array]):
        self._model, self._windows = model, windows
        self._blocks: list[Any] = list(getattr(model, "layers", None) or [])
        self._stand_ins: list[_Replaying] = []
        self.window = 0
        self.works = False
        self._record()

    def logits(self, window: int, path: str) -> mx.array:
        """Logits for a window, where nothing before the block of layer ``path`` has changed."""
        block = block_of(path) if self.works else None
        return self._run(window, 0 if block is None else block)

    def _run(self, window: int, first: int) -> mx.array:
        self.window = window
        layers = self._model.layers
        layers[:first] = self._stand_ins[:first]
        try:
            logits: mx.array = self._model(self._windows[window])
        finally:
            layers[:first] = self._blocks[:first]
        return logits

    def _record(self) -> None:
        layers = getattr(self._model, "layers", None)
        # A copy made for each question could be changed without any effect.
        if not isinstance(layers, list) or layers is not self._model.layers:
            return
        recording = [_Recording(block) for block in self._blocks]
        layers[:] = recording
        try:
            whole = [self._model(window) for window in self._windows]
            mx.eval(whole, [one.answers for one in recording])
        finally:
            layers[:] = self._blocks
        if any(len(one.answers) != len(self._windows) for one in recording):
            return
        self._stand_ins = [_Replaying(block, one.answers, self) for block, one in zip(self._blocks, recording, strict=True)]
        self.works = all(
            mx.array_equal(self._run(window, first), whole[window]).item()
            for first in (len(self._blocks) // 2, len(self._blocks))
            for window in range(len(self._windows))
        )
