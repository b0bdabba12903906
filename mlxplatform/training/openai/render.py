"""Fine-tune jobs, their events and checkpoints as OpenAI's objects. Pure functions of rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from mlxplatform.jobs.models import Job, JobEvent
from mlxplatform.jobs.states import RUNNING, TERMINAL
from mlxplatform.library.local_adapters import LocalAdapter, checkpoint_name
from mlxplatform.training import finetuning
from mlxplatform.training.models import Adapter, TrainingRun
from mlxplatform.training.openai import parse

_STATUS = {"waiting": "queued", "zombie": "running", "cancelling": "running", "done": "succeeded"}
_STATES = {"done": "The job has successfully completed.", "queued": "The job waits for its turn."}
#: Stages whose messages repeat what the metric events say.
_QUIET_STAGES = {"train"}


#: What stands for the fields that an order of an earlier version did not have.
_UNSAID: dict[str, Any] = {field.name: field.default for field in finetuning.FIELDS} | {"data": {}}


def public_id(job_id: str) -> str:
    return f"ftjob-{job_id.removeprefix('job_')}"


def private_id(public: str) -> str:
    return f"job_{public.removeprefix('ftjob-')}"


def status(job: Job) -> str:
    """The job's state in OpenAI's words."""
    return _STATUS.get(job.state, job.state)


def job_object(job: Job, run: TrainingRun | None, made: Adapter | None) -> dict[str, Any]:
    order = _UNSAID | job.config
    surface = run.surface if run else {}
    data = order["data"]
    kind = surface.get("method") or {"sft": "supervised"}.get(order["method"], order["method"])
    hyper = surface.get("hyperparameters") or {
        "batch_size": order["batch_size"],
        "learning_rate_multiplier": 1.0,
        "n_epochs": order["epochs"] or 1,
    }
    return {
        "id": public_id(job.id),
        "object": "fine_tuning.job",
        "created_at": _seconds(job.created_at),
        "error": {"code": job.error_code, "message": job.error, "param": _blamed(job, surface)}
        if job.state == "failed"
        else None,
        "fine_tuned_model": (made.model or made.name) if made and job.state == "done" else None,
        "finished_at": _seconds(job.ended_at) if job.state in TERMINAL else None,
        "estimated_finish": _estimated(job),
        "hyperparameters": {name: hyper.get(name) for name in ("batch_size", "learning_rate_multiplier", "n_epochs")},
        "method": {"type": kind, kind: {"hyperparameters": hyper}},
        "model": surface.get("model") or order["model"],
        "organization_id": "org-local",
        "result_files": [run.result_file] if run and run.result_file else [],
        "seed": order["seed"],
        "status": status(job),
        "trained_tokens": (job.result or {}).get("trained_tokens"),
        "training_file": data.get("training_file") or f"{data.get('dataset', '')}@{data.get('version', '')}",
        "validation_file": data.get("validation_file"),
        "integrations": [],
        "metadata": surface.get("metadata"),
        "mlx": {name: order[name] for name in finetuning_fields() if name in order},
    }


def _estimated(job: Job) -> int | None:
    """When a running job will be done, as it last said."""
    if job.state != RUNNING:
        return None
    said = JobEvent.objects.filter(job=job, type="stage", payload__eta_s__isnull=False).order_by("-seq").first()
    return int(said.at.timestamp() + said.payload["eta_s"]) if said else None


def _blamed(job: Job, surface: dict[str, Any]) -> str | None:
    """The field that a failure was blamed on, as OpenAI's body calls it."""
    end = JobEvent.objects.filter(job=job, type="failed").order_by("-seq").first()
    param = end.payload.get("param") if end else None
    return parse.said_as(param, str(surface.get("model", ""))) if param else None


def finetuning_fields() -> tuple[str, ...]:
    return tuple(f.name for f in finetuning.FIELDS if f.name not in {"model", "dataset", "training_file", "validation_file"})


def event_prefix(job_id: str) -> str:
    """How the ids of a job's events begin; a number follows."""
    return f"ftevent-{job_id.removeprefix('job_')}"


def event_object(event: JobEvent) -> dict[str, Any] | None:
    """One event, or None for those that say nothing to a client."""
    payload = event.payload
    shown: dict[str, Any] | None = None
    if event.type == "metric":
        message, data = _metric(payload)
        shown = {"type": "metrics", "message": message, "data": data}
    elif event.type == "stage" and payload.get("message") and payload.get("stage") not in _QUIET_STAGES:
        shown = {"type": "message", "message": payload["message"], "data": {}}
    elif event.type == "log":
        shown = {"type": "message", "message": payload.get("line", ""), "data": {}}
    elif event.type in {"state", "started", *TERMINAL}:
        state = payload.get("state") or event.type
        message = _STATES.get(state, f"The job is {state}.")
        shown = {"type": "message", "message": payload.get("error") or message, "data": {}}
    if shown is None:
        return None
    level = "error" if event.type == "failed" else "info"
    return {
        "id": f"{event_prefix(event.job_id)}-{event.seq}",
        "object": "fine_tuning.job.event",
        "created_at": _seconds(event.at),
        "level": level,
        **shown,
    }


def checkpoint_steps(made: Adapter, earlier: Sequence[LocalAdapter]) -> list[tuple[int, str]]:
    """(step, name to ask it by) of everything the run left, newest first: its result, and earlier steps."""
    last = made.metrics.get("kept_step") or made.metrics["steps"]
    # A model trained in full, and an adapter of before there were such names, is asked by its own name only.
    named = not made.model and "kept_step" in made.metrics
    found = [(last, checkpoint_name(made.name, last) if named else made.model or made.name)]
    return sorted([*found, *((one.step, one.name) for one in earlier)], reverse=True)


def checkpoint_object(job: Job, made: Adapter, step: int, name: str, curve: dict[str, Any]) -> dict[str, Any]:
    """One step that can be asked by name, with the newest figures up to it."""
    train: dict[str, Any] = next((point for point in reversed(curve["train"]) if point["step"] <= step), {})
    valid: dict[str, Any] = next((point for point in reversed(curve["val"]) if point["step"] <= step), {})
    used = ((made.metrics.get("dataset") or {}).get("valid") or {}).get("rows_used")
    full = valid if valid and valid.get("val_rows_used") == used else {}
    return {
        "id": f"ftckpt_{job.id.removeprefix('job_')}-{step}",
        "object": "fine_tuning.job.checkpoint",
        "created_at": _seconds(job.ended_at or job.created_at),
        "fine_tuned_model_checkpoint": name,
        "fine_tuning_job_id": public_id(job.id),
        "step_number": step,
        "metrics": {
            "step": step,
            "train_loss": train.get("loss"),
            "train_mean_token_accuracy": train.get("accuracy"),
            "valid_loss": valid.get("loss"),
            "valid_mean_token_accuracy": valid.get("accuracy"),
            "full_valid_loss": full.get("loss"),
            "full_valid_mean_token_accuracy": full.get("accuracy"),
        },
    }


def metrics_csv(curve: dict[str, Any]) -> bytes:
    """The result file: one line per step that has a figure."""
    steps: dict[int, dict[str, Any]] = {}
    for kind, names in (("train", ("train_loss", "train_accuracy")), ("val", ("valid_loss", "valid_mean_token_accuracy"))):
        for point in curve[kind]:
            steps.setdefault(point["step"], {}).update({names[0]: point["loss"], names[1]: point["accuracy"]})
    columns = ("train_loss", "train_accuracy", "valid_loss", "valid_mean_token_accuracy")
    lines = [",".join(("step", *columns))]
    lines += [",".join([str(step), *(str(steps[step].get(name, "")) for name in columns)]) for step in sorted(steps)]
    return ("\n".join(lines) + "\n").encode()


def _metric(payload: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    step = payload["step"]
    if payload["kind"] == "train":
        data = {"step": step, "train_loss": payload["loss"], "train_mean_token_accuracy": payload["accuracy"]}
        return f"Step {step}: training loss={payload['loss']}", data
    if payload["kind"] == "val":
        data = {"step": step, "valid_loss": payload["loss"], "valid_mean_token_accuracy": payload["accuracy"]}
        return f"Step {step}: validation loss={payload['loss']}", data
    used = payload.get("rows_used")
    return f"{payload.get('split', 'data')}: {used} rows used.", {name: v for name, v in payload.items() if name != "kind"}


def _seconds(at: dt.datetime | None) -> int | None:
    return int(at.timestamp()) if at else None
