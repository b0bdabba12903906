"""mlx-lm's continuous batch with our own way of choosing tokens.

:class:`mlx_lm.generate.BatchGenerator` moves sequences from prefill to decoding and keeps their caches in
one batch. What differs here is the step: the model's logits go to one :class:`Chooser` for all rows at once
instead of to one sampler per row, and there is no log-softmax over the vocabulary unless a row asked for
log-probabilities (0.8 ms per row and step on a CPU). Each row carries a :class:`Row`, which travels through
mlx-lm's own merging and filtering in the place of its sampler.

This module decides nothing about who runs: see :mod:`workers.engine.core`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from workers.engine.loading import import_light_mlx_lm
from workers.engine.protocol import Start

import_light_mlx_lm()

import mlx.core as mx  # noqa: E402
from mlx_lm.generate import BatchGenerator, GenerationBatch, PromptProcessingBatch, StopSequences  # noqa: E402
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache, trim_prompt_cache  # noqa: E402

__all__ = [
    "Batch",
    "Chooser",
    "Row",
    "StopSequences",
    "can_trim_prompt_cache",
    "make_prompt_cache",
    "trim_prompt_cache",
]


@dataclass(slots=True, eq=False)
class Row:
    """What choosing the next token of one sequence needs.

    ``sampler`` counts its own draws, those of an earlier child included, so that a seeded draw repeats after a
    re-insertion. ``history`` is prompt and emitted ids without the token just fed, which may still be on its
    way from the device (a chooser gets it as ``inputs``); ``buffer`` is the same on the device, for rows whose
    ``processors`` need it. ``adapter`` is the slot of its adapter, 0 for none. ``fault`` is set by a chooser
    that could not serve this row; the row is then ended without harm to the others.
    """

    seq: int
    sampler: Any
    processors: list[Any]
    history: list[int]
    logprobs: int | None = None
    constraint: Any = None
    adapter: int = 0
    buffer: Any = None
    fault: str | None = None


#: Log-probability of the chosen token, ids and log-probabilities of the best; arrays not yet evaluated.
Details = tuple[mx.array, mx.array | None, mx.array | None]


class Chooser(Protocol):
    """Makes rows, and chooses the next token of all of them in one call without ever raising."""

    def row(self, order: Start, emitted: list[int]) -> Row: ...

    def select(self, rows: list[Row]) -> None:
        """Called before each model call with the rows it is for."""

    def __call__(self, rows: list[Row], inputs: mx.array, logits: mx.array) -> tuple[mx.array, list[Details | None]]:
        """``inputs`` (n,) are the tokens just fed, ``logits`` (n, vocabulary). Returns tokens (n,) and details per row."""
        ...


#: mlx-lm annotates its attributes for its own samplers; ours are rows.
_Generation: Any = GenerationBatch
_Prompt: Any = PromptProcessingBatch


class _Decoding(_Generation):
    """The decode batch; ``samplers`` holds rows, ``_next_logprobs`` holds details."""

    chooser: Chooser
    _next_tokens: Any
    _next_logprobs: list[Any]

    def _step(self) -> tuple[list[int], list[Any]]:
        inputs, details = self._next_tokens, self._next_logprobs
        self.chooser.select(self.samplers)
        logits = self.model(inputs[:, None], cache=self.prompt_cache)[:, -1, :]
        tokens, next_details = self.chooser(self.samplers, inputs, logits)
        self._current_tokens, self._current_logprobs = inputs, details
        self._next_tokens, self._next_logprobs = tokens, next_details
        # Start the next step before waiting for this one: 40 ms pipelined against 49 ms in turn.
        mx.async_eval(tokens, [d for d in next_details if d is not None])
        ids = inputs.tolist()
        for row, known, token in zip(self.samplers, self.tokens, ids, strict=True):
            known.append(token)
            row.history.append(token)
        return ids, details


def _decoding_class(chosen_by: Chooser) -> type[_Decoding]:
    return type("Decoding", (_Decoding,), {"chooser": chosen_by})


class _Prefilling(_Prompt):
    """The prefill batch; hands over to our decode batch."""

    decoding: type[_Decoding]
    uids: list[int]
    prompt_cache: list[Any]
    tokens: list[list[int]]
    samplers: list[Any]
    logits_processors: list[Any]
    stop_sequences: list[Any]
    max_tokens: list[int]

    def prompt(self, tokens: list[list[int]]) -> None:
        if tokens:
            self.decoding.chooser.select(self.samplers)
        super().prompt(tokens)

    def generate(self, tokens: list[list[int]]) -> _Decoding:
        if any(len(ids) > 1 for ids in tokens):
            self.prompt([ids[:-1] for ids in tokens])
        batch = self.decoding(
            self.model,
            self.uids,
            mx.array([ids[-1] for ids in tokens]),
            self.prompt_cache,
            self.tokens,
            self.samplers,
            self.fallback_sampler,
            self.logits_processors,
            self.stop_sequences,
            self.max_tokens,
        )
        self.uids, self.prompt_cache, self.tokens = [], [], []
        self.samplers, self.logits_processors, self.max_tokens = [], [], []
        self.stop_sequences = []
        return batch


class Batch(BatchGenerator):
    """The generator. ``prefill_tokens`` per prompt and step may be changed between steps."""

    def __init__(self, model: Any, chooser: Chooser, *, slots: int, prefill_group: int, prefill_tokens: int):
        super().__init__(
            model,
            completion_batch_size=slots,
            prefill_batch_size=prefill_group,
            prefill_step_size=prefill_tokens,
            stream=mx.default_stream(mx.default_device()),
        )
        decoding = _decoding_class(chooser)
        prefilling: Any = type("Prefilling", (_Prefilling,), {"decoding": decoding})
        self._generation_batch = decoding.empty(model, self.sampler)
        self._prompt_batch = prefilling.empty(model, self.sampler, prefill_step_size=prefill_tokens)

    def set_prefill_tokens(self, tokens: int) -> None:
        self.prefill_step_size = tokens
        self._prompt_batch.prefill_step_size = tokens

    @property
    def decoding(self) -> int:
        """Sequences in the decode batch."""
        return len(self._generation_batch)

    @property
    def prefilling(self) -> int:
        """Sequences in prefill or about to enter it."""
        return len(self._prompt_batch) + len(self._unprocessed_sequences)

    @property
    def kv_bytes(self) -> int:
        return int(self.prompt_cache_nbytes)

    @property
    def prefill_counters(self) -> tuple[int, float]:
        """Prompt tokens processed and seconds spent on them since this generator was made."""
        return self._counters.prompt_tokens, self._counters.prompt_time
