"""Checkpoints a run can truly go on from: weights, optimizer state, and the figures of the run so far.

Batches, learning rate and random numbers are functions of the step number, so the step is the data cursor,
the schedule and the random state in one. A checkpoint is a directory that appears by one rename; the
newest whole one counts, and older ones are removed after it is there.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.optimizers import Optimizer
from mlx.utils import tree_flatten, tree_unflatten

_PREFIX = "step-"
_BEST = "best"
_KEPT = "kept-"


def save(folder: Path, model: nn.Module, optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Write the checkpoint of ``state["step"]`` and drop the ones before it."""
    target = folder / f"{_PREFIX}{state['step']:08d}"
    private = folder / f".{target.name}"
    shutil.rmtree(private, ignore_errors=True)
    private.mkdir(parents=True)
    save_weights(private / "weights.safetensors", model)
    mx.save_safetensors(str(private / "optimizer.safetensors"), _flat(optimizer.state))
    (private / "state.json").write_text(json.dumps(state))
    for path in private.iterdir():
        _fsync(path)
    _fsync(private)
    shutil.rmtree(target, ignore_errors=True)
    private.rename(target)
    _fsync(folder)
    for old in _all(folder):
        if old != target:
            shutil.rmtree(old, ignore_errors=True)


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint."""
    found = _all(folder)
    return found[-1] if found else None


def load(path: Path, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Put model and optimizer where the checkpoint left them; answers its state."""
    load_weights(path / "weights.safetensors", model)
    flat: Any = mx.load(str(path / "optimizer.safetensors"))
    optimizer.state = tree_unflatten(list(flat.items()))
    mx.eval(model.parameters(), optimizer.state)
    state: dict[str, Any] = json.loads((path / "state.json").read_text())
    return state


def save_best(folder: Path, model: nn.Module) -> None:
    """Keep the present weights as the best so far, replacing the former ones by one rename."""
    folder.mkdir(parents=True, exist_ok=True)
    private = folder / f".{_BEST}.safetensors"
    save_weights(private, model)
    _fsync(private)
    private.rename(folder / f"{_BEST}.safetensors")
    _fsync(folder)


def best(folder: Path) -> Path | None:
    path = folder / f"{_BEST}.safetensors"
    return path if path.is_file() else None


def keep(folder: Path, model: nn.Module, step: int, most: int) -> None:
    """Keep the weights of a step to be published beside the result; of those only the newest ``most``."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{_KEPT}{step:08d}.safetensors"
    private = folder / f".{target.name}"
    save_weights(private, model)
    _fsync(private)
    private.rename(target)
    _fsync(folder)
    for old, path in kept(folder)[:-most]:
        if old != step:
            path.unlink()


def kept(folder: Path) -> list[tuple[int, Path]]:
    """(step, weights) of what was kept, by step."""
    found = sorted(folder.glob(f"{_KEPT}*.safetensors"))
    return [(int(path.stem.removeprefix(_KEPT)), path) for path in found]


def save_weights(path: Path, model: nn.Module) -> None:
    mx.save_safetensors(str(path), trained_weights(model), metadata={"format": "mlx"})


def trained_weights(model: nn.Module) -> dict[str, mx.array]:
    return _flat(model.trainable_parameters())


def load_weights(path: Path, model: nn.Module) -> None:
    flat: Any = mx.load(str(path))
    model.load_weights(list(flat.items()), strict=False)


def _flat(tree: Any) -> dict[str, mx.array]:
    flat: Any = tree_flatten(tree)
    return dict(flat)


def _all(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if (path / "state.json").is_file())


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
