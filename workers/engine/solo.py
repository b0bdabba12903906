"""One sequence at a time with a quantized KV cache, behind the same face as the batch.

mlx-lm cannot merge quantized caches into a batch, so an engine that was asked for them runs whoever is next in line
alone: long contexts in a quarter or half of the memory, at the price of waiting. Everything around it (lines,
pre-emption, prompt caches, healing) is the core's and does not know the difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from workers.engine.batch import Chooser, KVCache, Row, make_prompt_cache
from workers.engine.loading import import_light_mlx_lm

import_light_mlx_lm()

from mlx_lm.models.cache import QuantizedKVCache  # noqa: E402

#: Values that share one scale, best first; a head must divide by it.
GROUPS = (64, 32)


def unsupported(model: Any, head_sizes: Sequence[int]) -> str | None:
    """Why this model cannot have a quantized cache, None when it can."""
    others = sorted({type(layer).__name__ for layer in make_prompt_cache(model) if type(layer) is not KVCache})
    if others:
        return "its attention keeps a window or a recurrent state, which cannot be quantized"
    if group_size(head_sizes) is None:
        return f"its attention heads of {', '.join(map(str, sorted(set(head_sizes))))} values do not divide by {GROUPS[-1]}"
    return None


def group_size(head_sizes: Sequence[int]) -> int | None:
    return next((group for group in GROUPS if all(size % group == 0 for size in head_sizes)), None)


@dataclass
class Prompted:
    uid: int
    progress: tuple[int, int]
    end_of_segment: bool
    end_of_prompt: bool


@dataclass
class _Generated:
    uid: int
    token: int
    logprobs: Any
    finish_reason: str | None
    prompt_cache: list[Any] | None
    all_tokens: list[int] | None


@dataclass
class Alone:
    uid: int
    row: Row
    #: Prompt tokens not fed yet, by segment; the last token of all is fed by the first decode step.
    segments: list[list[int]]
    total: int
    #: What the cache holds.
    tokens: list[int]
    cache: list[Any]
    left: int
    matcher: Any
    newest: Any = None
    details: Any = None


class Solo:
    """As :class:`workers.engine.batch.Batch`, for one sequence."""

    def __init__(self, model: Any, chooser: Chooser, make_cache: Callable[[], list[Any]], *, prefill_tokens: int):
        self._model, self._chooser, self._make_cache = model, chooser, make_cache
        self._prefill_tokens = prefill_tokens
        self._running: Alone | None = None
        self._numbers = 0
        self._prompt_tokens, self._prompt_seconds = 0, 0.0

    def insert_segments(
        self,
        segments: list[list[list[int]]],
        *,
        max_tokens: list[int],
        caches: list[list[Any]] | None,
        all_tokens: list[list[int]],
        samplers: list[Row],
        stop_sequences: list[Any],
    ) -> list[int]:
        if self._running is not None:
            raise RuntimeError("one sequence at a time")
        self._numbers += 1
        cache = _own(caches[0]) if caches is not None else self._make_cache()
        parts = [list(segment) for segment in segments[0] if segment]
        self._running = Alone(
            self._numbers, samplers[0], parts, sum(map(len, parts)), list(all_tokens[0]), cache, max_tokens[0],
            stop_sequences[0].matcher(),
        )  # fmt: skip
        return [self._numbers]

    def next(self) -> tuple[list[Prompted], list[_Generated]]:
        run = self._running
        if run is None:
            return [], []
        if run.newest is None:
            return [self._prefill(run)], []
        return [], [self._decode(run)]

    def _logits(self, run: Alone, tokens: list[int]) -> mx.array:
        """Feed the tokens that follow what the cache holds."""
        logits: mx.array = self._model(mx.array([tokens]), cache=run.cache)
        return logits

    def _prefill(self, run: Alone) -> Prompted:
        began = time.perf_counter()
        segment = run.segments[0]
        last = len(run.segments) == 1
        chunk = segment[: min(self._prefill_tokens, len(segment) - 1 if last else len(segment))]
        if chunk:
            self._chooser.select([run.row])
            self._logits(run, chunk)
            mx.eval([layer.state for layer in run.cache])
            run.tokens += chunk
            run.segments[0] = segment = segment[len(chunk) :]
            self._prompt_tokens += len(chunk)
            self._prompt_seconds += time.perf_counter() - began
        ended = not segment
        if ended:
            run.segments.pop(0)
        elif last and len(segment) == 1:
            self._feed(run, segment)
            run.segments.clear()
        done = run.total - sum(map(len, run.segments))
        return Prompted(run.uid, (done, run.total), ended, not run.segments)

    def _feed(self, run: Alone, tokens: list[int]) -> None:
        """Feed tokens, in general one, and choose the next."""
        self._chooser.select([run.row])
        logits = self._logits(run, tokens)[:, -1, :]
        chosen, (details,) = self._chooser([run.row], mx.array(tokens[-1:], dtype=mx.uint32), logits)
        run.tokens += tokens
        run.row.history.append(tokens[-1])
        run.newest, run.details = chosen, details
        mx.async_eval(chosen, [details] if details is not None else [])

    def _decode(self, run: Alone) -> _Generated:
        token, details = run.newest.item(), run.details
        run.left -= 1
        reason = "length" if run.left <= 0 else None
        if run.matcher.advance(token):
            reason = "stop"
        self._feed(run, [token])
        if reason is None:
            return _Generated(run.uid, token, details, None, None, None)
        self._running = None
        return _Generated(run.uid, token, details, reason, run.cache, run.tokens)

    def remove(self, uids: list[int], return_prompt_caches: bool = False) -> dict[int, tuple[list[Any], list[int]]]:
        run = self._running
        if run is None or run.uid not in uids:
            return {}
        self._running = None
        return {run.uid: (run.cache, run.tokens)} if return_prompt_caches else {}

    def extract_cache(self, uids: list[int]) -> dict[int, tuple[list[Any], list[int]]]:
        run = self._running
        return {run.uid: (_own(run.cache), list(run.tokens))} if run is not None and run.uid in uids else {}

    def set_prefill_tokens(self, tokens: int) -> None:
        self._prefill_tokens = tokens

    @property
    def prefilling(self) -> int:
        return int(self._running is not None and self._running.newest is None)

    @property
    def kv_bytes(self) -> int:
        return sum(int(layer.nbytes) for layer in self._running.cache if not layer.empty()) if self._running else 0

    @property
    def prefill_counters(self) -> tuple[int, float]:
        return self._prompt_tokens, self._prompt_seconds

    def close(self) -> None:
        self._running = None


def _own(cache: list[Any]) -> list[Any]:
    """A copy that may be written to: these layers write into their arrays."""
    found = []
    for layer in cache:
        own = copy(layer)
        own.keys, own.values = tree_map(lambda array: mx.array(array), (layer.keys, layer.values))
        found.append(own)
    return found


def cache_maker(model: Any, bits: int, group: int) -> Callable[[], list[Any]]:
    layers = len(make_prompt_cache(model))
    return lambda: [QuantizedKVCache(group_size=group, bits=bits) for _ in range(layers)]
