"""Texts to vectors: padding, pooling, cutting to fewer dimensions, normalising.

How states become one vector is read from the model directory as sentence-transformers writes it
(``modules.json``, ``1_Pooling/config.json``); a decoder model without such files uses its last token.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx

from workers.engine.loading import CannotLoad

Pooling = Literal["mean", "cls", "last"]

_MODES: tuple[tuple[str, Pooling], ...] = (
    ("pooling_mode_mean_tokens", "mean"),
    ("pooling_mode_cls_token", "cls"),
    ("pooling_mode_lasttoken", "last"),
)

#: Hidden states (texts, tokens, hidden) of padded ids and their mask.
States = Callable[[mx.array, mx.array], mx.array]


@dataclass(frozen=True)
class Embedder:
    """Ready to embed. ``context`` is the longest text in tokens."""

    states: States
    pooling: Pooling
    normalize: bool
    hidden: int
    context: int

    def embed(self, texts: list[list[int]], dimensions: int | None = None) -> list[bytes]:
        """One float32 little-endian vector per text, in order."""
        length = max(len(text) for text in texts)
        ids = mx.array([text + [0] * (length - len(text)) for text in texts])
        lengths = mx.array([len(text) for text in texts])
        mask = mx.arange(length)[None] < lengths[:, None]
        pooled = self._pool(self.states(ids, mask), mask, lengths).astype(mx.float32)
        if dimensions is not None and dimensions < self.hidden:
            pooled = pooled[:, :dimensions]
        if self.normalize or dimensions is not None:
            pooled = pooled / mx.maximum(mx.linalg.norm(pooled, axis=-1, keepdims=True), 1e-12)
        mx.eval(pooled)
        rows: list[Any] = list(pooled)
        return [bytes(memoryview(row)) for row in rows]

    def _pool(self, states: mx.array, mask: mx.array, lengths: mx.array) -> mx.array:
        if self.pooling == "cls":
            return states[:, 0]
        if self.pooling == "last":
            return mx.take_along_axis(states, (lengths - 1)[:, None, None], axis=1)[:, 0]
        weights = mask[..., None].astype(states.dtype)
        return (states * weights).sum(axis=1) / weights.sum(axis=1)


def read_pooling(folder: Path, default: Pooling) -> tuple[Pooling, bool]:
    """The pooling and whether vectors are normalised, as the directory says.

    Raises:
        CannotLoad: it asks for a pooling that is not known here.
    """
    modules = _json(folder / "modules.json")
    normalize = modules is None or any("Normalize" in str(module.get("type", "")) for module in modules)
    config = _json(folder / "1_Pooling" / "config.json")
    if config is None:
        return default, normalize
    chosen = [mode for key, mode in _MODES if config.get(key)]
    others = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    if len(chosen) != 1 or len(others) != 1:
        raise CannotLoad(f"The model's pooling ({', '.join(others) or 'none'}) is not supported.")
    return chosen[0], normalize


def decoder_states(model: Any) -> States:
    """Hidden states of a decoder: padding to the right changes nothing before it, since attention is causal."""

    def states(ids: mx.array, mask: mx.array) -> mx.array:
        del mask
        return model.model(ids)

    return states


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        raise CannotLoad(f"The model's {path.name} is not valid JSON.") from None
