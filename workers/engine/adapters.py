"""LoRA adapters in the batch: every row may use another one, or none.

A mounted adapter turns the layers it touches into :class:`MountedLinear`, which hold one low-rank pair per
adapter and pick a pair per row of the batch. A step in which nobody uses an adapter costs nothing extra. Ranks
are padded with zeros to a common one, which changes no result. Several adapters joined with ``+`` act
together, as the sum of their updates.

Only plain LoRA on linear layers is served so; anything else is refused with a reason.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten

#: Joins the names of adapters that act together.
JOIN = "+"

#: (input, rank) and (rank, output); the scale is already in the second.
Pair = tuple[mx.array, mx.array]


class AdapterRefused(Exception):
    """The adapter cannot be used with this model; the message is fit for a client."""


@dataclass
class Selection:
    """Which slot each row of the current model call uses; None when nobody uses any."""

    slots: mx.array | None = None


class MountedLinear(nn.Module):
    """A linear layer plus, per row, the update of that row's adapter."""

    def __init__(self, linear: nn.Module, selection: Selection):
        super().__init__()
        self.linear = linear
        # Leading underscores keep these out of the module's parameters.
        self._selection = selection
        self._pairs: dict[int, Pair] = {}
        self._down: mx.array | None = None
        self._up: mx.array | None = None

    def set_pair(self, slot: int, pair: Pair | None, slots: int) -> None:
        """Give a slot its pair, or take it away; ``slots`` is how many there are, slot 0 (none) included."""
        if pair is None:
            self._pairs.pop(slot, None)
        else:
            self._pairs[slot] = pair
        if not self._pairs:
            self._down = self._up = None
            return
        rank = max(down.shape[1] for down, _ in self._pairs.values())
        any_down, any_up = next(iter(self._pairs.values()))
        blank = (mx.zeros((any_down.shape[0], rank), any_down.dtype), mx.zeros((rank, any_up.shape[1]), any_up.dtype))
        padded = [_padded(self._pairs[i], rank) if i in self._pairs else blank for i in range(slots)]
        self._down = mx.stack([down for down, _ in padded])
        self._up = mx.stack([up for _, up in padded])
        mx.eval(self._down, self._up)

    def __call__(self, value: mx.array) -> mx.array:
        out = self.linear(value)
        slots = self._selection.slots
        if slots is None or self._down is None or self._up is None:
            return out
        update = (value @ self._down[slots]) @ self._up[slots]
        return out + update.astype(out.dtype)


def _padded(pair: Pair, rank: int) -> Pair:
    down, up = pair
    missing = rank - down.shape[1]
    if not missing:
        return pair
    return mx.pad(down, [(0, 0), (0, missing)]), mx.pad(up, [(0, missing), (0, 0)])


@dataclass
class Adapters:
    """The adapters mounted in one engine."""

    model: Any
    selection: Selection = field(default_factory=Selection)
    _updates: dict[str, dict[str, Pair]] = field(default_factory=dict)
    _refused: dict[str, str] = field(default_factory=dict)
    _slots: list[str] = field(default_factory=list)
    _layers: dict[str, MountedLinear] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return list(self._updates)

    def mount(self, name: str, folder: Path) -> dict[str, Any]:
        """Read an adapter; answers facts about it. Mounting a mounted name again does nothing.

        Raises:
            AdapterRefused: with a reason; nothing changed.
        """
        if name not in self._updates:
            try:
                self._updates[name] = self._fitting(folder)
            except AdapterRefused as refused:
                self._refused[name] = str(refused)
                raise
        pairs = self._updates[name]
        return {"layers": len(pairs), "bytes": sum(down.nbytes + up.nbytes for down, up in pairs.values())}

    def _fitting(self, folder: Path) -> dict[str, Pair]:
        pairs = _read(folder)
        modules = dict(self.model.named_modules())
        for path, pair in pairs.items():
            self._check(path, pair, modules.get(path))
        return pairs

    def unmount(self, name: str) -> None:
        """Forget an adapter and every combination it is part of."""
        self._updates.pop(name, None)
        for slot, used in enumerate(self._slots, start=1):
            if name in used.split(JOIN):
                self._slots[slot - 1] = ""
                for layer in self._layers.values():
                    layer.set_pair(slot, None, len(self._slots) + 1)

    def slot(self, name: str | None) -> int:
        """The slot of an adapter or combination; 0 for none.

        Raises:
            AdapterRefused: one of the names is not mounted.
        """
        if name is None:
            return 0
        if name in self._slots:
            return self._slots.index(name) + 1
        parts = name.split(JOIN)
        for part in parts:
            if part not in self._updates:
                raise AdapterRefused(self._refused.get(part, f"The adapter {part!r} is not mounted."))
        if "" in self._slots:
            slot = self._slots.index("") + 1
            self._slots[slot - 1] = name
        else:
            self._slots.append(name)
            slot = len(self._slots)
        pairs = _sum([self._updates[part] for part in parts])
        self._wrap(pairs)
        for path, layer in self._layers.items():
            layer.set_pair(slot, pairs.get(path), len(self._slots) + 1)
        return slot

    def select(self, slots: list[int]) -> None:
        """Set the adapters of the rows of the next model call."""
        self.selection.slots = mx.array(slots, dtype=mx.int32) if any(slots) else None

    def _wrap(self, pairs: dict[str, Pair]) -> None:
        modules = dict(self.model.named_modules())
        new = {path: MountedLinear(modules[path], self.selection) for path in pairs if path not in self._layers}
        if new:
            self.model.update_modules(tree_unflatten(list(new.items())))
            self._layers.update(new)

    def _check(self, path: str, pair: Pair, module: Any) -> None:
        if isinstance(module, MountedLinear):
            module = module.linear
        if module is None:
            raise AdapterRefused(f"The adapter changes {path}, which this model does not have.")
        if not isinstance(module, nn.Linear | nn.QuantizedLinear):
            raise AdapterRefused(
                f"The adapter changes {path}, a kind of layer that adapters cannot be served on; merge it instead."
            )
        outputs, inputs = module.weight.shape
        if isinstance(module, nn.QuantizedLinear):
            inputs = inputs * 32 // module.bits
        down, up = pair
        if down.shape[0] != inputs or up.shape[1] != outputs or down.shape[1] != up.shape[0]:
            raise AdapterRefused(
                f"The adapter was made for another model: {path} is {inputs} to {outputs} here, "
                f"{down.shape[0]} to {up.shape[1]} in the adapter."
            )


def _sum(updates: list[dict[str, Pair]]) -> dict[str, Pair]:
    """The pairs of several adapters acting together: their ranks side by side."""
    out: dict[str, Pair] = {}
    for pairs in updates:
        for path, (down, up) in pairs.items():
            if path in out:
                out[path] = (mx.concatenate([out[path][0], down], axis=1), mx.concatenate([out[path][1], up], axis=0))
            else:
                out[path] = (down, up)
    return out


def _read(folder: Path) -> dict[str, Pair]:
    try:
        config = json.loads((folder / "adapter_config.json").read_text())
        weights = mx.load(str(folder / "adapters.safetensors"))
        scale = float(config["lora_parameters"]["scale"])
        kind = config.get("fine_tune_type", "lora")
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        raise AdapterRefused("The adapter's files cannot be read.") from None
    if kind != "lora":
        raise AdapterRefused(f"Adapters of type {kind} cannot be served in the batch; merge it into its model instead.")
    if not math.isfinite(scale) or not isinstance(weights, dict):
        raise AdapterRefused("The adapter's files cannot be used.")
    pairs: dict[str, Pair] = {}
    for name, down in weights.items():
        if not name.endswith(".lora_a"):
            continue
        path = name.removesuffix(".lora_a")
        up = weights.get(f"{path}.lora_b")
        if up is None or down.ndim != 2 or up.ndim != 2:
            raise AdapterRefused(f"The adapter's update of {path} is not a plain pair of matrices.")
        pairs[path] = (down, up * scale)
    if not pairs:
        raise AdapterRefused("The adapter changes nothing.")
    mx.eval(pairs)
    return pairs
