"""Task ``evaluate``: what base and fine-tuned model make of rows neither learned from, token by token.

Loss is the mean over counted tokens, as in training; its error comes from the tokens' spread, so that a
difference within it is not taken for progress. The base is measured before the adapter is put in.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxplatform.training import rows
from workers.engine import platform
from workers.trainer import adapters, examples, model_files, report
from workers.trainer.batches import padded
from workers.trainer.control import Control
from workers.trainer.examples import Collected
from workers.trainer.report import Explained


def run(task: dict[str, Any], control: Control) -> dict[str, Any]:
    """Measure ``task["source"]`` alone and with ``task["adapter_path"]``, or another whole model, on the same rows."""
    report.stage("dataset", 0.0, "Reading the rows.")
    data = _rows(task)
    model = _load(Path(task["source"]), task["device"])
    base = _measure(model, data, task, control, "base", 0.05)
    if task["adapter_path"]:
        adapters.mount(model, Path(task["adapter_path"]))
        mx.eval(model.parameters())
    else:
        del model
        platform.give_memory_back()
        model = _load(Path(task["tuned_path"]), task["device"])
    tuned = _measure(model, data, task, control, "tuned", 0.5)
    gained = base["losses"] - tuned["losses"]
    return {
        "rows": data.describe() | {"rows_used": len(data.chosen)},
        "base": _figures(base),
        "tuned": _figures(tuned),
        "loss_gain": _short(gained.mean()),
        "loss_gain_se": _short(gained.std(ddof=1) / math.sqrt(gained.size)) if gained.size > 1 else None,
    }


def _rows(task: dict[str, Any]) -> Collected:
    found = list(rows.read(Path(task["rows"]), tuple(task["formats"])))
    if task["held_fraction"]:  # the share the run itself set apart
        found = rows.split(found, task["held_fraction"], task["seed"])[1]
    encoder = examples.Encoder(
        Path(task["source"]), limit=task["max_seq_length"], mask_prompt=task["mask_prompt"], every_turn=task["loss_on"] == "all"
    )
    data = encoder.collect(found[: task["max_examples"]])
    if not data.chosen:
        raise Explained("no_rows_to_measure", f"No row has a token to measure within {task['max_seq_length']} tokens.")
    return data


def _load(folder: Path, device: str) -> nn.Module:
    dense = device == "cpu"
    model, _ = model_files.load(folder, dense=dense, dtype="float32" if dense else None)
    mx.eval(model.parameters())
    return model


def _measure(
    model: nn.Module, data: Collected, task: dict[str, Any], control: Control, name: str, start: float
) -> dict[str, np.ndarray]:
    """Loss and correctness of every counted token, row after row."""
    model.eval()
    losses, correct = [], []
    for index, row in enumerate(data.chosen):
        control.between_steps()
        report.stage(name, start + 0.45 * index / len(data.chosen), row=index, rows=len(data.chosen))
        tokens, mask = padded([row], task["max_seq_length"])
        logits = model(mx.array(tokens[:, :-1]))[0].astype(mx.float32)
        targets, counted = tokens[0, 1:], mask[0, 1:].astype(bool)
        loss = nn.losses.cross_entropy(logits, mx.array(targets))
        best = np.array(logits.argmax(-1))
        losses.append(np.array(loss)[counted])
        if not np.isfinite(losses[-1]).all():
            who = "The base" if name == "base" else "The fine-tuned model"
            raise Explained("not_finite", f"{who} says nothing that is a number on row {index + 1} of those measured.")
        correct.append((best == targets)[counted])
    return {"losses": np.concatenate(losses).astype(np.float64), "correct": np.concatenate(correct)}


def _figures(measured: dict[str, np.ndarray]) -> dict[str, Any]:
    losses = measured["losses"]
    mean = float(losses.mean())
    return {
        "loss": _short(mean),
        "loss_se": _short(losses.std(ddof=1) / math.sqrt(losses.size)) if losses.size > 1 else None,
        "perplexity": _short(math.exp(min(mean, 700.0))),
        "token_accuracy": _short(measured["correct"].mean()),
        "tokens": int(losses.size),
    }


def _short(value: float) -> float:
    return float(f"{float(value):.6g}")
