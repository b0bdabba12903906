"""Logits processors of one row: repetition, presence and frequency penalties, and the bias table.

Each takes (tokens so far, logits [1, vocabulary]) and returns logits, as mlx-lm's batch wants them, stays
lazy and never raises.
"""

from __future__ import annotations

import mlx.core as mx

from mlxplatform.inference.contract import Sampling
from workers.engine.sampling import Processor


def _window(tokens: mx.array, size: int) -> mx.array:
    return tokens[-size:] if size > 0 else tokens


def _bias(table: dict[int, float]) -> Processor:
    ids = mx.array(list(table), dtype=mx.int32)
    values = mx.array(list(table.values()), dtype=mx.float32)

    def apply(_tokens: mx.array, logits: mx.array) -> mx.array:
        return logits.at[:, ids].add(values.astype(logits.dtype))

    return apply


def _repetition(penalty: float, size: int) -> Processor:
    def apply(tokens: mx.array, logits: mx.array) -> mx.array:
        seen = _window(tokens, size)
        if seen.size == 0:
            return logits
        chosen = logits[:, seen]
        # Towards less likely on both sides of zero.
        logits[:, seen] = mx.where(chosen < 0, chosen * penalty, chosen / penalty)
        return logits

    return apply


def _presence(penalty: float, size: int) -> Processor:
    def apply(tokens: mx.array, logits: mx.array) -> mx.array:
        seen = _window(tokens, size)
        if seen.size == 0:
            return logits
        logits[:, seen] = logits[:, seen] - penalty
        return logits

    return apply


def _frequency(penalty: float, size: int) -> Processor:
    def apply(tokens: mx.array, logits: mx.array) -> mx.array:
        seen = _window(tokens, size)
        if seen.size == 0:
            return logits
        # Repeated ids add up, once for each time the token was seen.
        return logits.at[:, seen].subtract(mx.array(penalty, dtype=logits.dtype))

    return apply


def processors(sampling: Sampling, *, vocab_size: int) -> list[Processor]:
    """What this request needs done to its logits; empty for most."""
    out: list[Processor] = []
    bias = {token: value for token, value in (sampling.logit_bias or {}).items() if 0 <= token < vocab_size}
    if bias:
        out.append(_bias(bias))
    if sampling.repetition_penalty is not None and sampling.repetition_penalty > 0 and sampling.repetition_penalty != 1.0:
        out.append(_repetition(sampling.repetition_penalty, sampling.repetition_context_size or 0))
    if sampling.presence_penalty:
        out.append(_presence(sampling.presence_penalty, sampling.presence_context_size or 0))
    if sampling.frequency_penalty:
        out.append(_frequency(sampling.frequency_penalty, sampling.frequency_context_size or 0))
    return out
