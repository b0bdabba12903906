"""Task ``finetune``: an adapter, or a fully trained model, from rows; published whole, resumable to the step.

Our own loop around mlx-lm's layers, because its trainer knows no stop, no resume of the optimizer and no
best weights. Between two steps the supervisor's wishes are looked at; a checkpoint is written at every
``steps_per_save`` and at every pause, with gradients that wait for their update and a validation that was interrupted.
"""

from __future__ import annotations

import json
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
from mlx import nn

from workers.trainer import adapters, checkpoint, gathering, model_files, objectives, optimizing, ranks, report
from workers.trainer.batches import Plan, padded
from workers.trainer.control import Control, Stop
from workers.trainer.examples import Collected
from workers.trainer.outcome import METRICS, publish, shown
from workers.trainer.report import Explained

#: Multiplier that spreads the seeds of neighbouring steps.
_SPREAD = 1_000_003


def run(task: dict[str, Any], control: Control) -> dict[str, Any]:
    """Train ``task["source"]`` on ``task["train"]`` and publish the result."""
    report.stage("dataset", 0.0, "Reading the data.")
    train, valid = gathering.collect(task)
    control.between_steps()
    report.stage("load", 0.01, "Loading the model.")
    model = _load(task)
    config = _adapter_config(task, model)
    mx.random.seed(task["seed"])
    adapters.attach(model, config)
    if task.get("warm_start"):
        adapters.warm_start(model, Path(task["warm_start"]))
        report.emit("log", line=f"The adapter starts from the weights of {task['warm_start_adapter']}.")
    trainer = Trainer(task, control, model, train, valid)
    outcome = trainer.train()
    report.stage("publish", 0.99, "Publishing.")
    return publish(task, model, config, trainer, outcome)


class Trainer:
    """The loop and its figures. ``state`` is everything a checkpoint keeps besides tensors."""

    def __init__(self, task: dict[str, Any], control: Control, model: nn.Module, train: Collected, valid: Collected):
        self.task, self.control, self.model, self.train_rows, self.valid_rows = task, control, model, train, valid
        self.folder = Path(task["work"])
        self.folder.mkdir(parents=True, exist_ok=True)
        self.plan = Plan([t.ids.size for t in train.chosen], task["batch_size"], task["seed"])
        # Through OpenAI's API, and whenever passes are what was ordered, a checkpoint stands for a pass.
        self._keep_every = task["steps_per_save"] if task["iters"] else self.plan.steps_per_epoch
        self.steps = task["iters"] or max(1, math.ceil(task["epochs"] * self.plan.steps_per_epoch))
        self.accumulate = task["grad_accumulation_steps"]
        self.optimizer = optimizing.build(task, math.ceil(self.steps / self.accumulate))
        self.optimizer.init(model.trainable_parameters())
        if task["grad_checkpoint"]:
            adapters.checkpoint_activations(model)
        self.objective = _objective(task)
        self.state: dict[str, Any] = {
            "step": 0,
            "trained_tokens": 0,
            "seconds": 0.0,
            "window": _empty_window(),
            "last_train": None,
            "vals": [],
            "best": None,
            "since_best": 0,
            "metrics_bytes": 0,
            #: The step whose validation was begun and not ended.
            "validating": None,
        }
        #: Sum of gradients that wait for the rest of their update.
        self._pending: Any = None
        self._references: tuple[list[float], list[float]] | None = None

    def train(self) -> str:
        """Run to the last step, to early stopping or to a wish; answers which: done, early_stop or finish."""
        if self.task["method"] == "dpo":  # before a checkpoint is put in: the reference is what training begins from
            self._references = self._reference_sums(self.train_rows), self._reference_sums(self.valid_rows)
        found = checkpoint.latest(self.folder)
        if found is not None:
            saved, self._pending = checkpoint.load(found, self.model, self.optimizer)
            self.state |= saved
            report.stage("resumed", self._progress(), f"Going on from step {self.state['step']}.", step=self.state["step"])
        self._open_metrics()
        self._step = self._step_function()
        self.model.train()
        try:
            return self._steps()
        except Stop as stop:
            if stop.op == "pause":
                self._save()
            raise

    def _steps(self) -> str:
        if self.valid_rows.chosen and self.state["step"] == 0 and not self.state["vals"]:
            self._validate()
        if self.state["validating"] and self._validated(self.state["validating"]):
            return "early_stop"
        while self.state["step"] < self.steps:
            self.control.between_steps()
            # There is nothing to publish before the first update, and nothing whole within one.
            if self.control.finishing and self.state["step"] and self._pending is None:
                return "finish"
            if self._one_step(self.state["step"] + 1):
                return "early_stop"
        return "done"

    def _one_step(self, number: int) -> bool:
        """Train on one batch and tell what is due; answers whether to stop early."""
        began = time.perf_counter()
        # A pure function of the step: dropout of a resumed run equals that of an uninterrupted one.
        mx.random.seed(self.task["seed"] * _SPREAD + number)
        in_update = (number - 1) % self.accumulate + 1  # the last update may have fewer steps than the others
        whole = in_update == self.accumulate or number == self.steps
        batch = self._batch(self.train_rows, self.plan.rows(number), 0)
        figures, self._pending, norm = self._step(batch, self._pending, in_update if whole else 0)
        mx.eval(self._compiled_state, figures, self._pending, norm)
        self._count(number, [float(f.item()) for f in figures], float(norm.item()), time.perf_counter() - began)
        last = number == self.steps
        if number % self.task["steps_per_report"] == 0 or last:
            self._report()
        if self.valid_rows.chosen and (number % self.task["steps_per_eval"] == 0 or last):
            self.state["validating"] = number
        if not self.state["validating"]:
            self._settle(number)
            return False
        return self._validated(number)

    def _validated(self, number: int) -> bool:
        """Validate after a step; answers whether it was once too often without improvement."""
        self._validate()
        self.state["validating"] = None
        self._settle(number)
        patience = self.task["early_stop_patience"]
        if not patience or self.state["since_best"] < patience:
            return False
        report.emit("log", line=f"Validation did not improve {patience} times in a row: stopped at step {number}.")
        return True

    def _settle(self, number: int) -> None:
        """Keep what is to be kept of a step."""
        if number == self.steps:
            return
        if number % self.task["steps_per_save"] == 0:
            self._save()
        if self.task.get("keep_checkpoints") and number % self._keep_every == 0:
            checkpoint.keep(self.folder, self.model, number, self.task["keep_checkpoints"])

    # -- one step ------------------------------------------------------------------------------------------

    def _step_function(self) -> Any:
        value_and_grad = nn.value_and_grad(self.model, self.objective)
        clip = self.task["grad_clip_norm"]
        self._compiled_state = [self.model.state, self.optimizer.state, mx.random.state]

        @partial(mx.compile, inputs=self._compiled_state, outputs=self._compiled_state)
        def step(batch: objectives.Batch, before: Any, summed: int) -> tuple[Any, Any, mx.array]:
            """``summed``: of how many steps this is the last before an update; 0 before the last."""
            figures, gradient = value_and_grad(self.model, *batch)
            if before is not None:
                gradient = _added(gradient, before)
            if not summed:
                return figures, gradient, mx.array(0.0)
            if summed > 1:
                gradient = _scaled(gradient, 1 / summed)
            if clip:
                gradient, norm = optim.clip_grad_norm(gradient, clip)
            else:
                _, norm = optim.clip_grad_norm(gradient, 1.0)
            self.optimizer.update(self.model, gradient)
            return figures, None, norm

        return step

    def _batch(self, data: Collected, numbers: list[int], which: int) -> objectives.Batch:
        sequences = [data.chosen[n] for n in numbers] + [data.rejected[n] for n in numbers if data.rejected]
        tokens, mask = padded(sequences, self.task["max_seq_length"])
        batch: tuple[mx.array, ...] = (mx.array(tokens), mx.array(mask))
        if self._references is not None:
            sums, half = self._references[which], len(data.chosen)
            batch += (mx.array([sums[n] for n in numbers] + [sums[half + n] for n in numbers]),)
        return batch

    def _reference_sums(self, data: Collected) -> list[float]:
        """Log-probability of each chosen, then each rejected answer under the model as training finds it: the base, or
        with the adapter that the run starts from."""
        self.model.eval()
        sums = []
        sides = [*data.chosen, *data.rejected]
        for index, sequence in enumerate(sides):
            self.control.between_steps()
            tokens, mask = padded([sequence], self.task["max_seq_length"])
            total, _ = objectives.answer_logprobs(self.model, mx.array(tokens), mx.array(mask))
            sums.append(_number(total))
            if index % 50 == 0:
                report.stage("reference", 0.01, "Measuring the reference.", row=index, rows=len(sides))
        return sums

    # -- figures -------------------------------------------------------------------------------------------

    def _count(self, number: int, figures: list[float], norm: float, seconds: float) -> None:
        loss, tokens, correct, counted, margin = figures
        _require_finite(loss, "loss", number)
        _require_finite(norm, "norm of the gradient", number)
        state, window = self.state, self.state["window"]
        state["step"] = number
        state["trained_tokens"] += int(tokens)
        state["seconds"] += seconds
        for name, value in (("loss", loss), ("tokens", tokens), ("correct", correct), ("counted", counted), ("margin", margin)):
            window[name] += value
        window["steps"] += 1
        window["seconds"] += seconds
        window["norm"] = norm or window["norm"]

    def _report(self) -> None:
        state, window = self.state, self.state["window"]
        values = {
            "loss": _short(window["loss"] / window["steps"]),
            "accuracy": _short(window["correct"] / max(window["counted"], 1)),
            "grad_norm": _short(window["norm"]),
            "learning_rate": _short(float(self.optimizer.learning_rate.item())),
            "tokens_per_sec": round(window["tokens"] / max(window["seconds"], 1e-9), 2),
            "trained_tokens": state["trained_tokens"],
            "peak_gb": round(mx.get_peak_memory() / 1e9, 4),
        }
        if self.task["method"] != "sft":
            values["margin"] = _short(window["margin"] / window["steps"])
        state["window"] = _empty_window()
        state["last_train"] = values
        self._metric("train", state["step"], values)
        per_step = state["seconds"] / state["step"]
        eta = round((self.steps - state["step"]) * per_step, 1)
        report.stage("train", self._progress(), f"Step {state['step']} of {self.steps}, loss {values['loss']}.", eta_s=eta)

    def _validate(self) -> None:
        self.model.eval()
        data, size = self.valid_rows, self.task["batch_size"]
        limit = self.task["val_max_examples"] or len(data.chosen)
        numbers = list(range(min(limit, len(data.chosen))))
        sums = np.zeros(4)
        for start in range(0, len(numbers), size):
            self.control.between_steps()
            loss, tokens, correct, counted, margin = self.objective(
                self.model, *self._batch(data, numbers[start : start + size], 1)
            )
            mx.eval(loss, tokens, correct, counted, margin)
            weight = tokens.item() if self.task["method"] == "sft" else counted.item()
            sums += np.array([loss.item() * weight, weight, correct.item(), counted.item()])
        self.model.train()
        _require_finite(float(sums[0]), "validation loss", self.state["step"])
        values = {
            "loss": _short(sums[0] / max(sums[1], 1)),
            "accuracy": _short(sums[2] / max(sums[3], 1)),
            "val_rows_used": len(numbers),
            "val_rows_skipped": sum(data.skipped.values()),
        }
        state = self.state
        state["vals"].append({"step": state["step"], **values})
        if state["best"] is None or values["loss"] < state["best"]["loss"]:
            state["best"], state["since_best"] = {"step": state["step"], "loss": values["loss"]}, 0
            if self.task["keep"] == "best":
                checkpoint.save_best(self.folder, self.model, state["step"])
        else:
            state["since_best"] += 1
        self._metric("val", state["step"], values)

    def _metric(self, kind: str, step: int, values: dict[str, Any]) -> None:
        report.emit("metric", kind=kind, step=step, **values)
        line = json.dumps({"kind": kind, "step": step, "t": round(time.time(), 3), **values}) + "\n"
        with (self.folder / METRICS).open("a") as out:
            out.write(line)
        self.state["metrics_bytes"] += len(line)

    def _open_metrics(self) -> None:
        """Cut off what a dead attempt wrote after its last checkpoint: those steps come again."""
        path = self.folder / METRICS
        if not path.exists():
            line = json.dumps({"kind": "meta", "task": shown(self.task), "t": round(time.time(), 3)}) + "\n"
            path.write_text(line)
            self.state["metrics_bytes"] = len(line)
            return
        if self.state["step"] == 0 and not self.state["metrics_bytes"]:
            path.unlink()
            self._open_metrics()
            return
        with path.open("r+b") as out:
            out.truncate(self.state["metrics_bytes"])

    def _save(self) -> None:
        checkpoint.save(self.folder, self.model, self.optimizer, self.state, self._pending)
        report.emit("artefact", name="checkpoint", step=self.state["step"])

    def _progress(self) -> float:
        return 0.02 + 0.96 * self.state["step"] / self.steps


def _load(task: dict[str, Any]) -> nn.Module:
    dense = task["device"] == "cpu"  # packed and half kernels are many times slower there
    model, _ = model_files.load(Path(task["source"]), dense=dense, dtype="float32" if dense else None)
    mx.eval(model.parameters())
    return model


def _adapter_config(task: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """What mlx-lm needs to rebuild the layers, with every default resolved."""
    layers = len(model.layers) if task["num_layers"] in {-1, 0} else min(task["num_layers"], len(model.layers))
    config: dict[str, Any] = {
        "fine_tune_type": task["fine_tune_type"],
        "num_layers": layers,
        "lora_parameters": {"rank": task["rank"], "scale": task["scale"], "dropout": task["lora_dropout"]},
        "base_model": task["model"],
        "base_revision": task["revision"],
        "method": task["method"],
        "name": task["name"],
        "project": task["project"],
    }
    if task["fine_tune_type"] != "full":
        keys = config["lora_parameters"]["keys"] = adapters.resolve_keys(model, task["target_modules"])
        if task.get("rs_lora"):
            config["lora_parameters"]["scale"] = task["scale"] * math.sqrt(task["rank"])
        if task.get("rank_scaling", "constant") != "constant":
            names = adapters.adapted_names(model, layers, keys)
            config["ranks"], note = ranks.chosen(task["rank_scaling"], task["rank"], names, Path(task["source"]))
            if note:
                report.emit("log", line=note)
    return config


def _objective(task: dict[str, Any]) -> Any:
    if task["method"] == "dpo":
        return objectives.dpo(task["dpo_beta"])
    if task["method"] == "orpo":
        return objectives.orpo(task["orpo_lambda"])
    return objectives.sft


def _empty_window() -> dict[str, float]:
    return dict.fromkeys(("loss", "tokens", "correct", "counted", "margin", "steps", "seconds", "norm"), 0.0)


def _require_finite(value: float, what: str, step: int) -> None:
    """
    Raises:
        Explained: nothing can be learned from here on, and what was is spoiled.
    """
    if not math.isfinite(value):
        raise Explained("loss_not_finite", f"The {what} became {'NaN' if math.isnan(value) else 'infinite'} at step {step}.")


def _number(value: mx.array) -> float:
    number: Any = value.item()
    return float(number)


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _added(left: Any, right: Any) -> Any:
    from mlx.utils import tree_map

    return tree_map(lambda x, y: x + y, left, right)


def _scaled(tree: Any, factor: float) -> Any:
    from mlx.utils import tree_map

    return tree_map(lambda x: x * factor, tree)
