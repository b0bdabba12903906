"""Adapters on a model: put trainable layers in, name them, write and read the directory mlx-lm understands.

The directory's ``adapter_config.json`` carries the resolved layer names (``keys``), so that loading it never
guesses, and the base model's id and revision, so that a mismatch is said.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten

from workers.engine.loading import import_light_mlx_lm
from workers.trainer import checkpoint
from workers.trainer.report import Explained

CONFIG, WEIGHTS = "adapter_config.json", "adapters.safetensors"
_LEAVES = {"lora_a", "lora_b", "m"}


def resolve_keys(model: nn.Module, wanted: list[str] | None) -> list[str]:
    """Names of the linear layers inside a block that get an adapter.

    Raises:
        Explained: a wanted name matches nothing.
    """
    found: dict[str, str] = {}
    for block in model.layers:
        for path, module in block.named_modules():
            if isinstance(module, nn.Linear | nn.QuantizedLinear):
                found[path] = path.rsplit(".", 1)[-1]
    if wanted is None:
        return sorted(found)
    keys = sorted(path for path, leaf in found.items() if leaf in wanted or path in wanted)
    missing = [name for name in wanted if name not in set(found) | set(found.values())]
    if missing:
        raise Explained(
            "no_target_modules", f"This model has no layer {missing[0]}; it has {', '.join(sorted(set(found.values())))}."
        )
    return keys


def attach(model: nn.Module, config: dict[str, Any]) -> None:
    """Freeze the model and put the adapter layers of ``config`` (an adapter_config) into it."""
    model.freeze()
    if config["fine_tune_type"] == "full":
        for block in model.layers[-config["num_layers"] :]:
            block.unfreeze()
        if config["num_layers"] >= len(model.layers):
            model.unfreeze()
        return
    if config.get("ranks"):
        _attach_by_rank(model, config, config["ranks"])
        return
    convert = _tuner_utils().linear_to_lora_layers
    convert(model, config["num_layers"], dict(config["lora_parameters"]), use_dora=config["fine_tune_type"] == "dora")


def _attach_by_rank(model: nn.Module, config: dict[str, Any], ranks: dict[str, int]) -> None:
    """As mlx-lm does it, but with a rank for each layer."""
    tuner, parameters = _tuner_utils(), config["lora_parameters"]
    kind = tuner.DoRALinear if config["fine_tune_type"] == "dora" else tuner.LoRALinear
    modules = dict(model.named_modules())
    made = [
        (name, kind.from_base(modules[name], r=rank, scale=parameters["scale"], dropout=parameters["dropout"]))
        for name, rank in ranks.items()
    ]
    model.update_modules(tree_unflatten(made))


def adapted_names(model: nn.Module, num_layers: int, keys: list[str]) -> list[str]:
    """Full names of the layers that get an adapter."""
    wanted, last = set(keys), list(model.layers)[-num_layers:]
    inside = {id(module) for block in last for path, module in block.named_modules() if path in wanted}
    return [name for name, module in model.named_modules() if id(module) in inside]


def checkpoint_activations(model: nn.Module) -> None:
    """Trade time for memory: a block's activations are computed again in the backward pass.

    Blocks of one class share the change, for the rest of the process; one process trains once.
    """
    for kind in {type(block) for block in model.layers}:
        _recompute(kind)


def _recompute(kind: Any) -> None:
    forward = kind.__call__

    def checkpointed(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
        def inner(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            block.update(parameters)
            return forward(block, *args, **kwargs)

        return mx.checkpoint(inner)(block.trainable_parameters(), *args, **kwargs)

    kind.__call__ = checkpointed


def _tuner_utils() -> Any:
    """mlx_lm.tuner.utils without its package's ``__init__``, which imports transformers (seconds on a busy machine)."""
    import_light_mlx_lm()
    if "mlx_lm.tuner" not in sys.modules:
        package = types.ModuleType("mlx_lm.tuner")
        package.__path__ = [str(Path(folder) / "tuner") for folder in sys.modules["mlx_lm"].__path__]
        sys.modules["mlx_lm.tuner"] = package
    return importlib.import_module("mlx_lm.tuner.utils")


def write(folder: Path, model: nn.Module, config: dict[str, Any]) -> int:
    """Write an adapter directory; answers the bytes of its weights.

    mlx-lm knows one rank for all layers: smaller ones are filled up with zeros, which change nothing.
    """
    shown = {name: value for name, value in config.items() if name != "ranks"}
    weights = checkpoint.trained_weights(model)
    if config.get("ranks"):
        rank = max(config["ranks"].values())
        weights = {name: _filled_up(name, value, rank) for name, value in weights.items()}
        shown["lora_parameters"] = {**config["lora_parameters"], "rank": rank}
        shown["applied_ranks"] = config["ranks"]
    mx.save_safetensors(str(folder / WEIGHTS), weights, metadata={"format": "mlx"})
    (folder / CONFIG).write_text(json.dumps(shown, indent=1) + "\n")
    return (folder / WEIGHTS).stat().st_size


def _filled_up(name: str, value: mx.array, rank: int) -> mx.array:
    if name.endswith(".lora_a"):
        return mx.pad(value, [(0, 0), (0, rank - value.shape[1])])
    return mx.pad(value, [(0, rank - value.shape[0]), (0, 0)]) if name.endswith(".lora_b") else value


def _cut(name: str, value: mx.array, rank: int | None) -> mx.array:
    """Without what :func:`_filled_up` added."""
    if rank is None or not name.endswith((".lora_a", ".lora_b")):
        return value
    return value[:, :rank] if name.endswith(".lora_a") else value[:rank]


def warm_start(model: nn.Module, folder: Path) -> None:
    """Put another adapter's weights into a model whose adapter layers are attached; only weights, nothing else of its run.

    Raises:
        Explained: its layers or ranks are others.
    """
    applied = read_config(folder).get("applied_ranks")
    _load_into(model, folder, applied if isinstance(applied, dict) else {})


def mount(model: nn.Module, folder: Path) -> dict[str, Any]:
    """Attach an adapter directory to its base and load its weights; every tensor must find its place.

    Raises:
        Explained: config or weights are missing, or do not fit the model.
    """
    config = read_config(folder)
    attach(model, config)
    _load_into(model, folder)
    return config


def _load_into(model: nn.Module, folder: Path, ranks: dict[str, int] | None = None) -> None:
    """``ranks``: the layers' own, where the file has all filled up to one."""
    try:
        weights: Any = mx.load(str(folder / WEIGHTS))
        weights = {name: _cut(name, value, (ranks or {}).get(name.rpartition(".")[0])) for name, value in weights.items()}
    except (FileNotFoundError, RuntimeError, ValueError) as error:
        raise Explained("adapter_incomplete", "The adapter's weights are missing or unreadable.") from error
    flat: Any = tree_flatten(model.parameters())
    present = {name: value.shape for name, value in flat if name.rsplit(".", 1)[-1] in _LEAVES}
    misfits = [name for name, value in weights.items() if present.get(name) != value.shape]
    if misfits or set(present) - set(weights):
        name = (misfits or sorted(set(present) - set(weights)))[0]
        raise Explained("adapter_incompatible", f"The adapter does not fit this model: {name} differs in name or shape.")
    model.load_weights(list(weights.items()), strict=False)


def read_config(folder: Path) -> dict[str, Any]:
    """
    Raises:
        Explained: the directory is no complete adapter.
    """
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_text())
        parameters = config["lora_parameters"]
        if not {"rank", "scale", "dropout"} <= set(parameters) or not config["fine_tune_type"] or not config["num_layers"]:
            raise KeyError
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Explained("adapter_incomplete", "The adapter's configuration is missing or incomplete.") from error
    return config
