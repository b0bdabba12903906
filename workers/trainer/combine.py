"""Tasks ``merge`` and ``export``: adapters combined into one, or written the way PEFT, mlx-lm or llama.cpp read them.

Merging concatenates along the rank: the sum of the adapters' effects, exactly, with each one's scale (and
weight) folded into its B matrix, so that the result's scale is 1.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxplatform.library import publication
from workers.trainer import adapters, export_gguf, fuse, model_files, report
from workers.trainer.allocation import block_of
from workers.trainer.control import Control
from workers.trainer.report import Explained

_Pairs = dict[str, tuple[mx.array, mx.array]]
#: How our leaves are called by PEFT.
_PEFT = {"lora_a": "lora_A.weight", "lora_b": "lora_B.weight"}


def run(task: dict[str, Any], control: Control) -> dict[str, Any]:
    if task["task"] == "merge":
        return _merge(task)
    Path(task["work"]).mkdir(parents=True, exist_ok=True)
    if task["format"] == "gguf":
        return _gguf(task, control)
    return _safetensors(task) if task["format"] == "safetensors" else _peft(task)


def _merge(task: dict[str, Any]) -> dict[str, Any]:
    sources = [Path(path) for path in task["paths"]]
    configs = [adapters.read_config(path) for path in sources]
    pairs = [_pairs(path) for path in sources]
    names = sorted(set().union(*pairs))
    merged: dict[str, mx.array] = {}
    ranks = {}
    for name in names:
        parts = [
            (own[name][0], own[name][1] * (config["lora_parameters"]["scale"] * weight))
            for own, config, weight in zip(pairs, configs, task["weights"], strict=True)
            if name in own
        ]
        if len({(a.shape[0], b.shape[1]) for a, b in parts}) > 1:
            raise Explained("adapters_incompatible", f"The adapters differ in the shape of {name}: they have different bases.")
        merged[f"{name}.lora_a"] = mx.concatenate([a for a, _ in parts], axis=1)
        merged[f"{name}.lora_b"] = mx.concatenate([b for _, b in parts], axis=0)
        ranks[name] = merged[f"{name}.lora_b"].shape[0]
    rank = max(ranks.values())
    keys = sorted(set().union(*(config["lora_parameters"]["keys"] for config in configs)))
    blocks = max(config["num_layers"] for config in configs)
    for name, like in _unmatched(ranks, keys, blocks).items():
        a, b = merged[f"{like}.lora_a"], merged[f"{like}.lora_b"]
        merged[f"{name}.lora_a"], merged[f"{name}.lora_b"] = mx.zeros(a.shape, a.dtype), mx.zeros(b.shape, b.dtype)
        ranks[name] = ranks[like]
    for name, own in ranks.items():  # mlx-lm knows one rank for all layers; zeros change nothing
        if own < rank:
            a, b = merged[f"{name}.lora_a"], merged[f"{name}.lora_b"]
            merged[f"{name}.lora_a"] = mx.pad(a, [(0, 0), (0, rank - own)])
            merged[f"{name}.lora_b"] = mx.pad(b, [(0, rank - own), (0, 0)])
    config = {
        # It is no step of one run any more, nor has it that run's ranks.
        **{name: value for name, value in configs[0].items() if name not in {"step", "applied_ranks"}},
        "num_layers": blocks,
        "lora_parameters": {"rank": rank, "scale": 1.0, "dropout": 0.0, "keys": keys},
        "name": task["name"],
        "project": task["project"],
        "merged_from": task["adapters"],
    }
    root = Path(task["output_root"])
    with publication.private_directory(root) as folder:
        mx.save_safetensors(str(folder / adapters.WEIGHTS), merged, metadata={"format": "mlx"})
        (folder / adapters.CONFIG).write_text(json.dumps(config, indent=1) + "\n")
        size = (folder / adapters.WEIGHTS).stat().st_size
        publication.write_provenance(folder, kind="merge", adapters=task["adapters"], weights=task["weights"], job=task["job"])
        publication.publish(folder, root, task["output"])
    common = set(pairs[0]).intersection(*pairs)
    return {
        "adapter": task["output"],
        "rank": rank,
        "bytes": size,
        "stats": {
            "layersMerged": len(common),
            "layersOnlyInOne": len(names) - len(common),
            "totalKeysOut": len(merged),
            "sources": task["adapters"],
            "scales": [c["lora_parameters"]["scale"] * w for c, w in zip(configs, task["weights"], strict=True)],
        },
    }


def _unmatched(present: Iterable[str], keys: Sequence[str], blocks: int) -> dict[str, str]:
    """Layers that mlx-lm will adapt because one adapter had them in another block → one of the same kind that is there."""
    found = set(present)
    numbers = [number for name in found if (number := block_of(name)) is not None]
    missing: dict[str, str] = {}
    for like in sorted(found):
        key, own = next((key for key in keys if like.endswith(f".{key}")), None), block_of(like)
        if key is None or own is None:
            continue
        prefix = like.removesuffix(f".{own}.{key}")
        for number in range(max(numbers) - blocks + 1, max(numbers) + 1):
            if (name := f"{prefix}.{number}.{key}") not in found:
                missing.setdefault(name, like)
    return missing


def _gguf(task: dict[str, Any], control: Control) -> dict[str, Any]:
    """The base with the adapter's effect in its weights, as one file for llama.cpp and its kin."""
    source = Path(task["source"])
    report.stage("load", 0.1, "Loading the model and the adapter.")
    model, _ = model_files.load(source, dense=True, dtype="float32")
    if task["paths"]:
        adapters.mount(model, Path(task["paths"][0]))
        fuse.fuse_layers(model, control)
    name = "model-f16.gguf"
    return {"files": [name], "tensors": export_gguf.write(Path(task["work"]) / name, model, source, task["name"])}


def _safetensors(task: dict[str, Any]) -> dict[str, Any]:
    """The adapter as it is, for mlx-lm; looked through first."""
    source, target = Path(task["paths"][0]), Path(task["work"])
    adapters.read_config(source)
    weights: Any = mx.load(str(source / adapters.WEIGHTS))
    for name in (adapters.WEIGHTS, adapters.CONFIG):
        shutil.copyfile(source / name, target / name)
    return {"files": [adapters.WEIGHTS, adapters.CONFIG], "tensors": len(weights)}


def _peft(task: dict[str, Any]) -> dict[str, Any]:
    source, target = Path(task["paths"][0]), Path(task["work"])
    config = adapters.read_config(source)
    parameters = config["lora_parameters"]
    tensors, pairs = {}, _pairs(source)
    for name, (a, b) in pairs.items():
        tensors[f"base_model.model.{name}.{_PEFT['lora_a']}"] = mx.contiguous(a.T)
        tensors[f"base_model.model.{name}.{_PEFT['lora_b']}"] = mx.contiguous(b.T)
    mx.save_safetensors(str(target / "adapter_model.safetensors"), tensors, metadata={"format": "pt"})
    peft = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": config["base_model"],
        "r": parameters["rank"],
        "lora_alpha": parameters["scale"] * parameters["rank"],
        "lora_dropout": parameters["dropout"],
        "target_modules": sorted({key.rsplit(".", 1)[-1] for key in parameters["keys"]}),
        # Else the same modules of the other blocks get one too, from nothing.
        "layers_to_transform": sorted({number for name in pairs if (number := block_of(name)) is not None}),
        "layers_pattern": "layers",
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    (target / "adapter_config.json").write_text(json.dumps(peft, indent=1) + "\n")
    return {"files": ["adapter_model.safetensors", "adapter_config.json"], "tensors": len(tensors)}


def _pairs(folder: Path) -> _Pairs:
    """(A, B) by layer.

    Raises:
        Explained: not a LoRA adapter, or one matrix of a layer is missing.
    """
    try:
        weights: Any = mx.load(str(folder / adapters.WEIGHTS))
    except (RuntimeError, ValueError) as error:
        raise Explained("adapter_incomplete", "The adapter's weights are missing or unreadable.") from error
    layers = {name.rpartition(".")[0] for name in weights}
    leaves = {name.rpartition(".")[2] for name in weights}
    if leaves != set(_PEFT):
        raise Explained("adapter_unsuitable", "Only plain LoRA adapters can be merged or exported.")
    missing = [layer for layer in layers if f"{layer}.lora_a" not in weights or f"{layer}.lora_b" not in weights]
    if missing:
        raise Explained("adapter_incomplete", f"The adapter has only one matrix for {missing[0]}.")
    report.stage("read", 0.3)
    return {layer: (weights[f"{layer}.lora_a"], weights[f"{layer}.lora_b"]) for layer in sorted(layers)}
