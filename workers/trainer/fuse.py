"""Task ``fuse``: an adapter's effect is written into its base model's weights; the result is an ordinary model.

Layers of a quantized base are packed again by their own scheme. Modules without an adapter keep their bits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_unflatten

from mlxplatform.library import publication
from workers.trainer import adapters, model_files, report
from workers.trainer.control import Control
from workers.trainer.report import Explained


def run(task: dict[str, Any], control: Control) -> dict[str, Any]:
    source, models = Path(task["source"]), Path(task["models"])
    report.stage("load", 0.1, "Loading the model and the adapter.")
    model, config = model_files.load(source)
    adapters.mount(model, Path(task["adapter_path"]))
    layers = fuse_layers(model, control)
    size = model_files.tensor_bytes(model)
    report.stage("write", 0.8, "Writing.")
    with publication.private_directory(models) as folder:
        model_files.save(folder, source, model, config)
        written, _ = model_files.load(folder)  # shapes and names are checked before anybody can see it
        model_files.require_numbers(written)
        del written
        control.between_steps()
        publication.write_provenance(
            folder, kind="fuse", base=task["model"], base_revision=task["revision"], adapter=task["adapter"], job=task["job"]
        )
        try:
            publication.publish(folder, models, task["output"])
        except publication.NameTaken:
            raise Explained("name_taken", f"There is a model called {task['output']} already; nothing was changed.") from None
    return {
        "model": task["output"],
        "base_model": task["model"],
        "adapter": task["adapter"],
        "layers": layers,
        "bytes": size,
    }


def fuse_layers(model: nn.Module, control: Control) -> int:
    """Write every adapter's effect into its layer, in place; answers how many layers there were.

    Raises:
        Explained: there is none.
    """
    layers = [(path, module) for path, module in model.named_modules() if hasattr(module, "fuse")]
    if not layers:
        raise Explained("nothing_to_fuse", "The adapter changes no layer of this model.")
    for index, (path, module) in enumerate(layers):
        control.between_steps()
        fused = module.fuse(dequantize=False)
        mx.eval(fused.parameters())
        model.update_modules(tree_unflatten([(path, fused)]))
        if index % 20 == 0:
            report.stage("fuse", 0.2 + 0.6 * index / len(layers), layer=index, layers=len(layers))
    return len(layers)
