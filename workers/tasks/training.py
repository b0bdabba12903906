"""Runners of trainer jobs on a GPU host: what the child is told, and what is kept of its answer."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import transaction

from mlxplatform import paths
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs.context import JobContext, JobFailed
from mlxplatform.library import local_models, names, publication
from mlxplatform.library.local_models import LocalModel
from mlxplatform.training import quantization, reports
from workers.engine.platform import memory_budget
from workers.tasks.trainer_child import Run


def quantize(ctx: JobContext) -> dict[str, Any]:
    """Run one quantize job; the answer is the report."""
    order = ctx.config
    model = base_model(order["model"], order["revision"])
    models = paths.models_dir(settings.HOME)
    with RefusalsExplained():
        if _was_published(models, order["output"], ctx.job_id):
            return reports.kept(ctx.job_id)
        with transaction.atomic():
            names.check(order["output"], "output")
            names.reserve(order["output"], ctx.job_id, "output")
    needed = quantization.estimate_bytes(model.parameters, order)
    preflight(needed)
    publication.sweep(models)
    task = {
        **order,
        **machine(),
        "task": "quantize",
        "job": ctx.job_id,
        "source": str(model.path),
        "source_bytes": model.bytes,
        "models": str(models),
    }
    result = Run(ctx, task, needed, f"quantize {model.id}").result()
    reports.keep(ctx.job_id, ctx.project, result)
    ctx.artefact("model", id=result["model"])
    return {**result, "url": f"/api/quantize/reports/{ctx.job_id}"}


def base_model(model_id: str, revision: str) -> LocalModel:
    """The model of an order, which must still be the one that was ordered."""
    model = local_models.find(model_id, settings.HOME)
    if model is None:
        raise JobFailed("model_not_found", f"The model {model_id} is not on this machine any more.")
    if model.revision != revision:
        raise JobFailed("model_changed", f"The model {model_id} has changed since the job was ordered; order it again.")
    return model


def preflight(needed: int) -> None:
    """Refuse with numbers before anything is loaded."""
    budget = memory_budget(settings.ENV.memory_budget_mb << 20)
    if needed > budget:
        raise JobFailed("memory_admission", quantization.unfit(needed, budget).message)


def machine() -> dict[str, Any]:
    """Settings of this machine a child needs before it imports mlx."""
    return {"blas": settings.ENV.blas, "threads": settings.ENV.threads}


class RefusalsExplained:
    """A refusal inside a running job ends it with the same code and words."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Refusal):
            raise JobFailed(error.code, error.message) from None


def _was_published(models: Any, output: str, job_id: str) -> bool:
    """Whether an earlier attempt of this very job published and died before it could say so."""
    provenance = local_models.find(output, models.parent)
    return provenance is not None and provenance.provenance.get("job") == job_id
