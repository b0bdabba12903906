"""Runners of trainer jobs on a GPU host: what the child is told, and what is kept of its answer."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction

from mlxplatform import paths
from mlxplatform.files import service as files
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs.context import JobCancelled, JobContext, JobFailed
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.states import CANCELLED, DONE
from mlxplatform.library import announced, local_adapters, local_models, names, publication
from mlxplatform.library.local_models import LocalModel
from mlxplatform.training import curves, data, finetuning, quantization, registry, reports, warm_start
from mlxplatform.training.models import TrainingRun
from mlxplatform.training.openai.render import metrics_csv
from workers.engine.platform import memory_budget
from workers.tasks.trainer_child import Run


def quantize(ctx: JobContext) -> dict[str, Any]:
    """Run one quantize job; the answer is the report."""
    order = ctx.config
    model = base_model(order["model"], order["revision"])
    models = paths.models_dir(settings.HOME)
    with RefusalsExplained():
        if _was_published(models, order["output"], ctx.job_id):
            announced.wait_until_known(ctx, order["output"])
            return reports.kept(ctx.job_id, ctx.project)
        with transaction.atomic():
            names.check(order["output"], "output")
            names.reserve(order["output"], ctx.job_id, "output")
    needed = quantization.estimate_bytes(model.parameters, order)
    preflight(needed)
    publication.sweep(models)
    sweep_work()
    work = paths.training_dir(settings.HOME) / ctx.job_id
    task = {
        **order,
        **machine(),
        "task": "quantize",
        "job": ctx.job_id,
        "source": str(model.path),
        "source_bytes": model.bytes,
        "models": str(models),
        "work": str(work),
    }
    try:
        result = Run(ctx, task, needed, f"quantize {model.id}").result()
    except JobCancelled:
        shutil.rmtree(work, ignore_errors=True)
        raise
    shutil.rmtree(work, ignore_errors=True)
    reports.keep(ctx.job_id, ctx.project, result)
    ctx.artefact("model", id=result["model"])
    announced.wait_until_known(ctx, result["model"])
    return {**result, "url": f"/api/quantize/reports/{ctx.job_id}"}


def finetune(ctx: JobContext) -> dict[str, Any]:
    """Run one fine-tune job; the answer names what it made."""
    order = ctx.config
    full = order["fine_tune_type"] == "full"
    root = paths.models_dir(settings.HOME) if full else paths.adapters_dir(settings.HOME)
    output = _full_name(ctx, order) if full else finetuning.adapter_id(ctx.job_id)
    name = finetuning.model_name(order, ctx.job_id)
    work = paths.training_dir(settings.HOME) / ctx.job_id
    if not _was_published(root, output, ctx.job_id):
        model = base_model(order["model"], order["revision"])
        with RefusalsExplained():
            # Where a child left a folder it had read the rows: that work goes on, whatever was deleted since.
            train, valid = data.paths(order["data"], begun=work.is_dir())
        needed = finetuning.estimate_bytes(model, order)
        preflight(needed)
        started_from = warm_start.folder(order.get("warm_start_adapter"))
        if order.get("warm_start_adapter") and started_from is None:
            raise JobFailed("adapter_not_found", "The adapter to start from is not here any more.", param="warm_start_adapter")
        publication.sweep(root)
        sweep_work()
        task = {
            **{key: value for key, value in order.items() if key != "data"},
            **machine(),
            "task": "finetune",
            "job": ctx.job_id,
            "name": name,
            "project": ctx.project,
            "source": str(model.path),
            "train": str(train),
            "valid": str(valid) if valid else "",
            "formats": finetuning.FORMATS[order["method"]],
            "lineage": data.lineage(order["data"]),
            "warm_start": str(started_from or ""),
            "work": str(work),
            "output_root": str(root),
            "output": output,
        }
        for warning in order["data"]["inspection"]["warnings"]:
            ctx.log(warning)
        run = Run(ctx, task, needed, f"finetune {model.id}", finish_asked=lambda: _finish_asked(ctx.job_id))
        try:
            run.result()
        except JobCancelled:
            shutil.rmtree(work, ignore_errors=True)
            raise
    result = registry.keep(ctx.job_id, ctx.project, root / output)
    _keep_curve(ctx, root / output)
    shutil.rmtree(work, ignore_errors=True)
    ctx.artefact("model" if full else "adapter", id=output, asked_as=name)
    if order["fine_tune_type"] in local_adapters.SERVED or full:
        announced.wait_until_known(ctx, output if full else name)
    return result


def _keep_curve(ctx: JobContext, folder: Path) -> None:
    """Write the result file once, from the figures this and earlier attempts logged."""
    run, _ = TrainingRun.objects.get_or_create(job=ctx.job_id, defaults={"project": ctx.project})
    if run.result_file:
        return
    content = metrics_csv(curves.from_file(folder / registry.METRICS))
    file = files.store([content], "step_metrics.csv", "fine-tune-results", project=ctx.project, created_by=ctx.created_by)
    run.result_file = file.id
    run.save(update_fields=["result_file"])


def _full_name(ctx: JobContext, order: dict[str, Any]) -> str:
    """The name of a fully trained model, taken again if an earlier end of the job let it go."""
    name = finetuning.full_output(order, ctx.job_id)
    with RefusalsExplained(), transaction.atomic():
        if not _was_published(paths.models_dir(settings.HOME), name, ctx.job_id):
            names.check(name, "output")
            names.reserve(name, ctx.job_id, "output")
    return name


def _finish_asked(job_id: str) -> bool:
    return TrainingRun.objects.filter(pk=job_id, finish=True).exists()


def sweep_work() -> None:
    """Remove the checkpoints of runs that ended for good while no worker was looking."""
    root = paths.training_dir(settings.HOME)
    if not root.is_dir():
        return
    kept = set(Job.objects.exclude(state__in=(DONE, CANCELLED)).values_list("id", flat=True))
    for folder in root.iterdir():
        if folder.name not in kept:
            shutil.rmtree(folder, ignore_errors=True)


def base_model(model_id: str, revision: str) -> LocalModel:
    """The model of an order, which must still be the one that was ordered."""
    model = local_models.find(model_id, settings.HOME)
    if model is None:
        raise JobFailed("model_not_found", f"The model {model_id} is not on this machine any more.", param="model")
    if model.revision != revision:
        message = f"The model {model_id} has changed since the job was ordered; order it again."
        raise JobFailed("model_changed", message, param="model")
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
            raise JobFailed(error.code, error.message, param=error.param) from None


def _was_published(root: Path, output: str, job_id: str) -> bool:
    """Whether an earlier attempt of this very job published and died before it could say so."""
    return publication.provenance(root / output).get("job") == job_id
