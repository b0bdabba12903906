"""Checkpoints a run can truly go on from: weights, optimizer state, gradients that wait for their update, and figures.

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
from mlx.utils import tree_flatten, tree_map_with_path, tree_unflatten

_PREFIX = "step-"
_BEST = "best-"
_WEIGHTS, _OPTIMIZER, _PENDING, _STATE = "weights.safetensors", "optimizer.safetensors", "pending.safetensors", "state.json"
_KEPT = "kept-"


def save(folder: Path, model: nn.Module, optimizer: Optimizer, state: dict[str, Any], pending: Any = None) -> None:
    """Write the checkpoint of ``state["step"]`` and drop the ones before it, and best weights that it knows nothing of."""
    target = folder / _name_after(folder, state["step"])
    private = folder / f".{target.name}"
    shutil.rmtree(private, ignore_errors=True)
    private.mkdir(parents=True)
    save_weights(private / _WEIGHTS, model)
    mx.save_safetensors(str(private / _OPTIMIZER), _flat(optimizer.state))
    if pending is not None:
        mx.save_safetensors(str(private / _PENDING), _flat(pending))
    (private / _STATE).write_text(json.dumps(state))
    for path in private.iterdir():
        _fsync(path)
    _fsync(private)
    private.rename(target)
    _fsync(folder)
    for old in _all(folder):
        if old != target:
            shutil.rmtree(old, ignore_errors=True)
    for path in folder.glob(f"{_BEST}*.safetensors"):
        if state["best"] is None or path != best_of(folder, state["best"]["step"]):
            path.unlink()


def _name_after(folder: Path, step: int) -> str:
    """The step's, with a number where it has one already: a run that was paused where it had just begun may have validated
    meanwhile."""
    name = f"{_PREFIX}{step:08d}"
    same = [path.name.removeprefix(name) for path in _all(folder) if path.name.startswith(name)]
    return f"{name}-{int(same[-1].strip('-') or 0) + 1:06d}" if same else name


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint."""
    found = _all(folder)
    return found[-1] if found else None


def load(path: Path, model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Any], Any]:
    """Put model and optimizer where the checkpoint left them; answers its state, and gradients that wait for their update."""
    load_weights(path / _WEIGHTS, model)
    flat: Any = mx.load(str(path / _OPTIMIZER))
    optimizer.state = tree_unflatten(list(flat.items()))
    mx.eval(model.parameters(), optimizer.state)
    pending = None
    if (path / _PENDING).is_file():
        waiting: Any = mx.load(str(path / _PENDING))
        # In the shape gradients have, with its empty branches: those of a later step are added to it.
        pending = tree_map_with_path(lambda name, _: waiting[name], model.trainable_parameters())
    state: dict[str, Any] = json.loads((path / _STATE).read_text())
    return state, pending


def save_best(folder: Path, model: nn.Module, step: int) -> None:
    """Keep the present weights as the best so far. Those of an earlier step go with the next checkpoint: until then a death
    leads back to where they were the best."""
    folder.mkdir(parents=True, exist_ok=True)
    target = best_of(folder, step)
    private = folder / f".{target.name}"
    save_weights(private, model)
    _fsync(private)
    private.rename(target)
    _fsync(folder)


def best_of(folder: Path, step: int) -> Path:
    """Where the weights of a best step are."""
    return folder / f"{_BEST}{step:08d}.safetensors"


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
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if (path / _STATE).is_file())


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
