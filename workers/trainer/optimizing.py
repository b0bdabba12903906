"""Optimizers and learning rates. The rate is a function of the optimizer's own update counter, which checkpoints keep."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim

#: A cosine or linear schedule ends at this share of the peak.
FLOOR = 0.1


def schedule(kind: str, peak: float, warmup: int, updates: int) -> Callable[[mx.array], mx.array] | float:
    """Learning rate by number of updates done: a linear rise over ``warmup``, then constant, linear or cosine."""
    if kind == "constant" and not warmup:
        return peak
    span = max(updates - warmup, 1)

    def rate(done: mx.array) -> mx.array:
        done = done.astype(mx.float32) if isinstance(done, mx.array) else mx.array(float(done))
        left = mx.clip((done - warmup) / span, 0.0, 1.0)
        if kind == "cosine":
            share = FLOOR + (1 - FLOOR) * 0.5 * (1 + mx.cos(math.pi * left))
        elif kind == "linear":
            share = 1 - (1 - FLOOR) * left
        else:
            share = mx.array(1.0)
        rise = mx.minimum((done + 1) / warmup, 1.0) if warmup else mx.array(1.0)
        return peak * share * rise

    return rate


def build(task: dict[str, Any], updates: int) -> optim.Optimizer:
    """The optimizer of a run. With a LoRA+ ratio, the adapters' B matrices learn that much faster than the rest."""
    ratio = task.get("lora_plus_ratio") or 1.0
    if ratio == 1.0:
        return _one(task, task["learning_rate"], updates)
    both = [_one(task, task["learning_rate"], updates), _one(task, task["learning_rate"] * ratio, updates)]
    return optim.MultiOptimizer(both, [lambda name, _: not name.endswith("lora_b")])


def _one(task: dict[str, Any], peak: float, updates: int) -> optim.Optimizer:
    rate = schedule(task["lr_schedule"], peak, task["warmup_iters"], updates)
    name, decay = task["optimizer"], task["weight_decay"]
    if name == "adamw":
        return optim.AdamW(learning_rate=rate, betas=[0.9, 0.999], eps=1e-8, weight_decay=decay)
    if name == "adam":
        return optim.Adam(learning_rate=rate)
    if name == "sgd":
        return optim.SGD(learning_rate=rate, weight_decay=decay)
    if name == "muon":
        return optim.Muon(learning_rate=rate, weight_decay=decay)
    return optim.Adafactor(learning_rate=rate, relative_step=False, scale_parameter=False)
