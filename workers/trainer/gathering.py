"""What a fine-tune learns from and is measured by: both parts of an order's rows, encoded, with what became of each said aloud.

Knows the order and its files; how a row becomes tokens is :mod:`workers.trainer.examples`' business.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlxplatform.training import rows
from workers.trainer import examples, report
from workers.trainer.examples import Collected
from workers.trainer.report import Explained


def collect(task: dict[str, Any]) -> tuple[Collected, Collected]:
    """Both files as token sequences; refused when nothing is left to learn from."""
    encoder = examples.Encoder(
        Path(task["source"]), limit=task["max_seq_length"], mask_prompt=task["mask_prompt"], every_turn=task["loss_on"] == "all"
    )
    train_rows = _rows(task, "train", "training_file")
    valid_rows = _rows(task, "valid", "validation_file") if task["valid"] else []
    if task["valid_fraction"] and not valid_rows:
        train_rows, valid_rows = rows.split(train_rows, task["valid_fraction"], task["seed"])
        if not valid_rows:
            report.emit("log", line="Too few rows for a validation share: the run has no validation set.")
    train, valid = encoder.collect(train_rows), encoder.collect(valid_rows)
    for name, data in (("train", train), ("valid", valid)):
        described = data.describe()
        if name == "train" or valid_rows:
            report.emit("metric", kind="dataset", step=0, split=name, **described)
        if data.skipped:
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(data.skipped.items()))
            report.emit("log", line=f"{name}: skipped {sum(data.skipped.values())} rows ({reasons}).")
        if data.truncated:
            report.emit("log", line=f"{name}: {data.truncated} rows were cut to {task['max_seq_length']} tokens.")
    if not train.chosen and train.skipped.keys() == {"template_refused"}:
        raise Explained("template_failed", "The model's chat template cannot render any of these rows.")
    if not train.chosen:
        message = f"No row has a trainable token within {task['max_seq_length']} tokens."
        raise Explained("no_trainable_rows", message, _source(task, "training_file"))
    return train, valid


def _rows(task: dict[str, Any], part: str, param: str) -> list[tuple[int, dict[str, Any]]]:
    try:
        return list(rows.read(Path(task[part]), tuple(task["formats"])))
    except OSError:
        raise Explained("file_not_found", f"The rows of {part} cannot be read any more.", _source(task, param)) from None


def _source(task: dict[str, Any], file: str) -> str:
    """The field of the order that names a part's rows."""
    return "dataset" if "dataset" in task["lineage"] else file
