"""mlx-lm's continuous batch with our own way of choosing tokens.

:class:`mlx_lm.generate.BatchGenerator` moves sequences from prefill to decoding and keeps their caches in
one batch. What differs here is the step: the model's logits go to one :class:`Chooser` for all rows at once
instead of to one sampler per row, and there is no log-softmax over the vocabulary unless a row asked for
log-probabilities (0.8 ms per row and step on a CPU). Each row carries a :class:`Row`, which travels through
mlx-lm's own merging and filtering in the place of its sampler.

This module decides nothing about who runs: see :mod:`workers.engine.core`.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

from workers.engine.loading import import_light_mlx_lm
from workers.engine.protocol import Start

import_light_mlx_lm()

import mlx.core as mx  # noqa: E402
from mlx_lm.generate import BatchGenerator, GenerationBatch, PromptProcessingBatch, StopSequences  # noqa: E402
from mlx_lm.models.cache import KVCache, can_trim_prompt_cache, make_prompt_cache, trim_prompt_cache  # noqa: E402

__all__ = [
    "Batch",
    "Chooser",
    "Row",
    "StopSequences",
    "always_trims",
    "can_trim_prompt_cache",
    "make_prompt_cache",
    "reusable",
    "trim_prompt_cache",
]


class Ahead(Protocol):
    """Several tokens of one row by one pass of the model."""

    def guess(self, newest: int) -> list[int]:
        """Tokens to feed behind ``newest``; none for an ordinary step."""

    def choose(self, logits: mx.array, fed: list[int]) -> list[int]:
        """What follows each of ``fed`` (the newest and its guesses), as far as the guesses hold.

        ``logits`` is (len(fed), vocabulary). The answer has one token more than guesses that hold.
        """

    def undo(self, count: int) -> None:
        """The last ``count`` tokens that held were not given out after all: they will come again one by one."""


@dataclass(frozen=True)
class Fault:
    """Why a row cannot go on; ``message`` is fit for a client."""

    code: str
    message: str
    status: int


#: The client's own grammar led to a place that nothing may follow.
DEAD_END = Fault("unsupported_constraint", "The constraint allows nothing to follow what was written so far.", 400)
#: A processor did not do what it must always do.
OPTIONS_FAILED = Fault("engine_failed", "The request's sampling options failed.", 500)


@dataclass(slots=True, eq=False)
class Row:
    """What choosing the next token of one sequence needs.

    ``sampler`` counts its own draws, those of an earlier child included, so that a seeded draw repeats after a
    re-insertion. ``history`` is prompt and emitted ids without the token just fed, which may still be on its
    way from the device (a chooser gets it as ``inputs``); ``buffer`` is the same on the device, for rows whose
    ``processors`` need it. ``adapter`` is the slot of its adapter, 0 for none. ``fault`` is set by a chooser
    that could not serve this row; the row is then ended without harm to the others. ``ahead`` tells what may come
    next when the row runs alone, None for rows that are told a token at a time. ``kept`` says that somebody wants its
    cache when it ends, which costs cutting it out of the batch. ``watched`` says that somebody waits for its first token,
    which then does not wait for a step of everybody. ``pictures`` are what the first ``prompt`` tokens refer
    to, packed, for a model that sees.
    """

    seq: int
    sampler: Any
    processors: list[Any]
    history: list[int]
    logprobs: int | None = None
    constraint: Any = None
    adapter: int = 0
    buffer: Any = None
    fault: Fault | None = None
    ahead: Ahead | None = None
    kept: bool = True
    watched: bool = False
    pictures: bytes = b""
    prompt: int = 0


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


def always_trims(model: Any) -> bool:
    """Whether this model's caches can be cut to any length, whatever they hold; windowed and recurrent ones cannot."""
    return all(type(layer) is KVCache for layer in make_prompt_cache(model))


def reusable(cache: list[Any] | None, covered: int, tokens: list[int], *, merged: bool) -> tuple[list[Any] | None, int]:
    """A cache of the first ``covered`` tokens as a sequence of ``tokens`` can go on from, one token at least being left to
    feed; ``(None, 0)`` when it cannot. ``merged``: it will have to join those of a batch."""
    if cache is None:
        return None, 0
    excess = covered - (len(tokens) - 1)
    if excess > 0:
        if not can_trim_prompt_cache(cache):
            return None, 0
        trim_prompt_cache(cache, excess)
        covered -= excess
    if covered <= 0 or (merged and not all(hasattr(layer, "merge") for layer in cache)):
        return None, 0
    return cache, covered


#: mlx-lm annotates its attributes for its own samplers; ours are rows.
_Generation: Any = GenerationBatch
_Prompt: Any = PromptProcessingBatch


class _Decoding(_Generation):
    """The decode batch; ``samplers`` holds rows, ``_next_logprobs`` holds details."""

    chooser: Chooser
    uids: list[int]
    tokens: list[list[int]]
    samplers: list[Any]
    prompt_cache: list[Any]
    max_tokens: list[int]
    _num_tokens: list[int]
    _matchers: list[Any]
    _current_tokens: Any
    _next_tokens: Any
    _next_logprobs: list[Any]

    #: Tokens of a row that runs alone, already fed and not yet given out; the next one is behind them.
    _settled: list[int]
    #: First tokens of those who joined, made before they joined.
    _first: list[Any]

    def __init__(self, *args: Any, **kwargs: Any):
        self._settled, self._first = [], []
        super().__init__(*args, **kwargs)

    def _step(self) -> tuple[list[int], list[Any]]:
        if self._settled:
            return self._give_out(self._settled.pop(0))
        ahead = self.samplers[0].ahead if len(self.uids) == 1 else None
        if ahead is not None and self._current_tokens is not None:
            newest = self._next_tokens.item()
            guessed = ahead.guess(newest)
            if guessed:
                self._settle(ahead, [newest, *guessed])
                return self._give_out(newest)
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

    def next(self) -> list[Any]:
        """One step; as mlx-lm's, but a cache is cut out of the batch only for those who want it."""
        if not self.uids:
            return []
        tokens, details = self._step()
        keep, responses = [], []
        for i, token in enumerate(tokens):
            self._num_tokens[i] += 1
            reason = "length" if self._num_tokens[i] >= self.max_tokens[i] else None
            if self._matchers[i].advance(token):
                reason = "stop"
            if reason is None:
                keep.append(i)
                responses.append(self.Response(self.uids[i], token, details[i], None, None, None))
            else:
                cache = self.extract_cache(i) if self.samplers[i].kept else None
                responses.append(self.Response(self.uids[i], token, details[i], reason, cache, self.tokens[i]))
        if len(keep) < len(self.uids):
            self.filter(keep)
        return responses

    def _give_out(self, token: int) -> tuple[list[int], list[Any]]:
        self.tokens[0].append(token)
        self.samplers[0].history.append(token)
        return [token], [None]

    def _settle(self, ahead: Ahead, fed: list[int]) -> None:
        """Feed the newest token and guesses in one pass; keep those that hold, and the token behind them."""
        self.chooser.select(self.samplers)
        logits = self.model(mx.array([fed]), cache=self.prompt_cache)[0]
        chosen = ahead.choose(logits, fed)
        self._trim(len(fed) - len(chosen))
        self._settled = chosen[:-1]
        self._next_tokens, self._next_logprobs = mx.array(chosen[-1:], dtype=mx.uint32), [None]

    def _trim(self, count: int) -> None:
        if count:
            for layer in self.prompt_cache:
                layer.trim(count)

    def _rewind(self) -> None:
        """Before anything but the next step: the cache holds exactly what was given out."""
        if self._settled:
            self._trim(len(self._settled))
            self.samplers[0].ahead.undo(len(self._settled))
            self._next_tokens = mx.array(self._settled[:1], dtype=mx.uint32)
            self._settled = []

    def extract_cache(self, idx: int) -> list[Any]:
        self._rewind()
        taken: list[Any] = super().extract_cache(idx)
        return taken

    def filter(self, keep: list[int]) -> None:
        self._rewind()
        super().filter(keep)

    def extend(self, batch: Any) -> None:
        """Take others in. Newcomers that are watched make a step of their own first: it is shorter than everybody's."""
        if not any(batch._num_tokens) and any(row.watched for row in batch.samplers):
            self._first += batch.next()
            batch._rewind()
        if not len(batch):
            return
        if len(self.uids):
            self._rewind()
        super().extend(batch)

    def first_tokens(self) -> list[Any]:
        """Responses of newcomers since the last call."""
        first, self._first = self._first, []
        return first


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

    def split(self, indices: list[int]) -> Any:
        """Part of the batch as a batch of its own. All of it, the usual case, moves without a copy of every cache."""
        if len(indices) < len(self.uids):
            return super().split(indices)
        moved = copy(self)
        self._empty()
        return moved

    def _empty(self) -> None:
        self.uids, self.prompt_cache, self.tokens = [], [], []
        self.samplers, self.logits_processors, self.max_tokens = [], [], []
        self.stop_sequences = []

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
        self._empty()
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

    def next_of_newcomers(self) -> tuple[list[Any], list[Any]]:
        """A turn for prompts only: nobody who decodes gets a token."""
        decoding = self._generation_batch
        self._generation_batch = type(decoding).empty(self.model, self.sampler)
        try:
            return self.next()
        finally:
            joined, self._generation_batch = self._generation_batch, decoding
            if len(joined):
                decoding.extend(joined)

    def next(self) -> tuple[list[Any], list[Any]]:
        prompts, responses = super().next()
        return prompts, [*responses, *self._generation_batch.first_tokens()]

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
