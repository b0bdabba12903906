"""What a fine-tune leaves behind: an adapter directory or a model, with its curve and everything needed to repeat it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx
from mlx import nn

from mlxplatform.library import local_adapters, publication
from workers.trainer import adapters, checkpoint, model_files
from workers.trainer.examples import Collected
from workers.trainer.report import Explained

METRICS = "metrics.jsonl"
RUN = "run.json"


class Trained(Protocol):
    """What publishing needs to know of a run. ``state`` is what its checkpoints keep besides tensors."""

    folder: Path
    steps: int
    state: dict[str, Any]
    train_rows: Collected
    valid_rows: Collected


def publish(task: dict[str, Any], model: nn.Module, config: dict[str, Any], trainer: Trained, outcome: str) -> dict[str, Any]:
    """Write the result under its name, whole or not at all; answers what the job answers."""
    state = trainer.state
    best = state["best"] if task["keep"] == "best" else None
    if best is not None:
        checkpoint.load_weights(checkpoint.best_of(trainer.folder, best["step"]), model)
    step = best["step"] if best is not None else state["step"]
    _require_numbers(model, step)
    result: dict[str, Any] = {
        "outcome": outcome,
        "base_model": task["model"],
        "steps": state["step"],
        "planned_steps": trainer.steps,
        "trained_tokens": state["trained_tokens"],
        "seconds": round(state["seconds"], 2),
        "peak_gb": round(mx.get_peak_memory() / 1e9, 4),
        "final_train": state["last_train"],
        "final_val": state["vals"][-1] if state["vals"] else None,
        "best": state["best"],
        "kept": "best" if best is not None else "last",
        "kept_step": step,
        "trajectory": state["vals"],
        "dataset": {"train": trainer.train_rows.describe(), "valid": trainer.valid_rows.describe()},
        "validation": bool(trainer.valid_rows.chosen),
    }
    root, name = Path(task["output_root"]), task["output"]
    with publication.private_directory(root) as folder:
        if task["fine_tune_type"] == "full":
            source = Path(task["source"])
            _, base_config = model_files.load(source, dense=True)
            model_files.cast(model, task["dtype"])
            _require_numbers(model, step)  # float16 ends at 65504
            base_config["torch_dtype"] = task["dtype"]
            result["bytes"] = model_files.tensor_bytes(model)
            model_files.save(folder, source, model, base_config)
        else:
            result["checkpoints"] = _write_checkpoints(folder, model, config, trainer, step)
            result["bytes"] = adapters.write(folder, model, config | ({"step": step} if step else {}))
            result["layers"] = config["lora_parameters"]["keys"]
            result["applied_ranks"] = config.get("ranks")
        (folder / METRICS).write_bytes((trainer.folder / METRICS).read_bytes())
        (folder / RUN).write_text(json.dumps({"config": shown(task), "result": result}, indent=1) + "\n")
        publication.write_provenance(
            folder, kind="finetune", base=task["model"], base_revision=task["revision"], job=task["job"], lineage=task["lineage"]
        )
        try:
            publication.publish(folder, root, name)
        except publication.NameTaken:
            raise Explained("name_taken", f"{name} exists already; nothing was changed.") from None
    return result


def _require_numbers(model: nn.Module, step: int) -> None:
    """
    Raises:
        Explained: a weight is NaN or infinite, as after a last update that nothing was computed with any more.
    """
    for name, value in checkpoint.trained_weights(model).items():
        if not mx.isfinite(value).all().item():
            raise Explained("loss_not_finite", f"After step {step} {name} holds NaN or infinity; nothing is published.")


def _write_checkpoints(folder: Path, model: nn.Module, config: dict[str, Any], trainer: Trained, result: int) -> list[int]:
    """Earlier steps as adapters of their own below the result; answers them. The model keeps its weights."""
    present, steps = checkpoint.trained_weights(model), []
    for step, weights in checkpoint.kept(trainer.folder):
        # The result may be one of them; and a dead attempt may have been further than an early finish.
        if step < trainer.state["step"] and step != result:
            checkpoint.load_weights(weights, model)
            own = folder / local_adapters.CHECKPOINTS / f"step-{step}"
            own.mkdir(parents=True)
            adapters.write(own, model, {**config, "step": step})
            steps.append(step)
    model.load_weights(list(present.items()), strict=False)
    return steps


def shown(task: dict[str, Any]) -> dict[str, Any]:
    """The task without paths of this machine: with it, the run can be repeated elsewhere."""
    hidden = {"source", "train", "valid", "work", "output_root", "blas", "threads", "task", "warm_start"}
    return {name: value for name, value in task.items() if name not in hidden}
