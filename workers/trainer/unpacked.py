"""Packed layers computed densely while their scales and offsets are trained: for CPUs, whose packed products are slow.

A packed weight is codes, and for each group of them a scale and an offset. Here the codes are held as numbers and the
weight is put together anew for each pass, so that a pass and its gradient are dense products; what is learned is put back
into the packed layers afterwards. Memory: as much as the dense model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_unflatten


class _Unpacked(nn.Module):
    """What both kinds share. ``weight``, ``bits``, ``group_size`` and ``mode`` are what mlx-lm knows a packed layer by."""

    def __init__(self, packed: Any):
        super().__init__()
        self.bits, self.group_size, self.mode = packed.bits, packed.group_size, packed.mode
        self.weight, self.scales, self.biases = packed.weight, packed.scales, packed.biases
        one = mx.ones_like(packed.scales, dtype=mx.float32)
        self.codes = mx.dequantize(
            packed.weight, scales=one, biases=mx.zeros_like(one), group_size=self.group_size, bits=self.bits
        ).reshape(*packed.scales.shape, self.group_size)
        if "bias" in packed:
            self.bias = packed.bias

    def dense(self, rows: Any = slice(None)) -> mx.array:
        weight = self.codes[rows] * self.scales[rows][..., None] + self.biases[rows][..., None]
        return weight.reshape(*weight.shape[:-2], -1)


class UnpackedLinear(_Unpacked):
    def __call__(self, x: mx.array) -> mx.array:
        y = x @ self.dense().T
        return y + self.bias if "bias" in self else y


class UnpackedEmbedding(_Unpacked):
    def __call__(self, x: mx.array) -> mx.array:
        return self.dense(x)

    def as_linear(self, x: mx.array) -> mx.array:
        return x @ self.dense().T


_KINDS: dict[type, type[_Unpacked]] = {nn.QuantizedLinear: UnpackedLinear, nn.QuantizedEmbedding: UnpackedEmbedding}


@contextmanager
def unpacked(model: nn.Module) -> Iterator[None]:
    """Within it the model's packed layers are computed densely. Kinds unknown here stay as they are."""
    packed: dict[str, Any] = {path: layer for path, layer in model.named_modules() if type(layer) in _KINDS}
    opened: dict[str, _Unpacked] = {path: _KINDS[type(layer)](layer) for path, layer in packed.items()}
    for layer in opened.values():
        mx.eval(layer.parameters())
        layer.freeze()
    model.update_modules(tree_unflatten(list(opened.items())))
    try:
        yield
    finally:
        for path, layer in packed.items():
            layer.scales, layer.biases = opened[path].scales, opened[path].biases
        model.update_modules(tree_unflatten(list(packed.items())))
