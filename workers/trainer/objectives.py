"""What a step minimises. Each objective is a function of the model and a batch: (loss, figures).

``sft`` is the cross-entropy of the counted tokens. ``dpo`` prefers chosen over rejected answers relative to
the same model without its adapter; those reference log-probabilities are computed once, before the first
step. ``orpo`` needs no reference: chosen cross-entropy plus the log odds ratio of the two answers.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
from mlx import nn

Batch = tuple[mx.array, ...]
#: loss, counted tokens, correct ones (or preferred pairs), total of the latter, margin
Figures = tuple[mx.array, mx.array, mx.array, mx.array, mx.array]


def sft(model: nn.Module, tokens: mx.array, mask: mx.array) -> Figures:
    logits = model(tokens[:, :-1])
    targets, counted = tokens[:, 1:], mask[:, 1:].astype(mx.float32)
    loss = nn.losses.cross_entropy(logits, targets).astype(mx.float32) * counted
    total = counted.sum()
    correct = ((logits.argmax(-1) == targets) * counted).sum()
    return loss.sum() / mx.maximum(total, 1), total, correct, total, mx.array(0.0)


def answer_logprobs(model: nn.Module, tokens: mx.array, mask: mx.array) -> tuple[mx.array, mx.array]:
    """(sum of the counted tokens' log-probabilities, their number) per sequence."""
    logits = model(tokens[:, :-1])
    counted = mask[:, 1:].astype(mx.float32)
    losses = nn.losses.cross_entropy(logits, tokens[:, 1:]).astype(mx.float32) * counted
    return -losses.sum(-1), counted.sum(-1)


def dpo(beta: float) -> Callable[..., Figures]:
    """A batch holds the chosen sequences, then the rejected ones, and the reference sums of both."""

    def objective(model: nn.Module, tokens: mx.array, mask: mx.array, reference: mx.array) -> Figures:
        sums, counts = answer_logprobs(model, tokens, mask)
        half = tokens.shape[0] // 2
        gained = sums - reference
        margin = beta * (gained[:half] - gained[half:])
        loss = -nn.log_sigmoid(margin).mean()
        return loss, counts.sum(), (margin > 0).sum(), mx.array(float(half)), margin.mean()

    return objective


def orpo(weight: float) -> Callable[..., Figures]:
    """Length-normalised; ``weight`` scales the odds-ratio term."""

    def objective(model: nn.Module, tokens: mx.array, mask: mx.array) -> Figures:
        sums, counts = answer_logprobs(model, tokens, mask)
        half = tokens.shape[0] // 2
        mean = mx.minimum(sums / mx.maximum(counts, 1), -1e-6)
        odds = mean - mx.log1p(-mx.exp(mean))
        ratio = odds[:half] - odds[half:]
        chosen = -(sums[:half].sum() / mx.maximum(counts[:half].sum(), 1))
        loss = chosen - weight * nn.log_sigmoid(ratio).mean()
        return loss, counts.sum(), (ratio > 0).sum(), mx.array(float(half)), ratio.mean()

    return objective
