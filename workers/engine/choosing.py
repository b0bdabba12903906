"""Choosing the next token of every row of a step in one call."""

from __future__ import annotations

import mlx.core as mx

from workers.engine.batch import Details, Row


def choose(rows: list[Row], inputs: mx.array, logits: mx.array) -> tuple[mx.array, list[Details | None]]:
    """Greedy rows take the arg-max; the others draw from their temperature with a key of their own."""
    del inputs
    tokens = mx.argmax(logits, axis=-1)
    temperatures = [row.sampling.temperature or 0.0 for row in rows]
    if any(temperatures):
        scale = mx.array([[1.0 / t if t else 1.0] for t in temperatures])
        keys = [
            mx.random.key(((row.sampling.seed if row.sampling.seed is not None else row.seq) * 1_000_003 + row.drawn) & (2**63 - 1))
            for row in rows
        ]
        drawn = mx.stack(
            [mx.random.categorical(logits[i] * scale[i], key=key) for i, key in enumerate(keys)]
        )
        tokens = mx.where(mx.array([bool(t) for t in temperatures]), drawn.astype(tokens.dtype), tokens)
    return tokens, [None] * len(rows)
