"""``/api/finetune/*`` and ``/api/adapters*``: looking at data, ordering, finishing early, and what was made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction
from django.http import HttpRequest

from mlxplatform.accounts import audit
from mlxplatform.http.body import read_json
from mlxplatform.http.fields import Field, read
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import queries
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.states import TERMINAL
from mlxplatform.training import adapter_orders, blind, data, evaluation, finetuning, registry
from mlxplatform.training.curves import curve_of
from mlxplatform.training.models import TrainingRun
from mlxplatform.training.views import actor_of, earlier_job, idempotency_key, project_of

Check = Callable[[dict[str, Any], str | None], dict[str, Any]]
#: The fields of an order that only name data.
_DATA_FIELDS = tuple(Field(name, "text", high=100) for name in ("dataset", "training_file", "validation_file"))


def project_filter(request: HttpRequest) -> str | None:
    """The project to look in; None for those who see every project."""
    identity = getattr(request, "identity", None)
    return project_of(request) if identity is not None and not identity.is_admin else None


async def fields(request: HttpRequest) -> dict[str, Any]:
    return {"ok": True, "fields": [field.describe() for field in finetuning.FIELDS], "formats": finetuning.FORMATS}


async def inspect_dataset(request: HttpRequest) -> dict[str, Any]:
    body = await read_json(request)
    return await sync_to_async(_inspect)(request, body)


def _inspect(request: HttpRequest, body: dict[str, Any]) -> dict[str, Any]:
    if "path" in body:
        raise Refusal(400, "unknown_parameter", "Data is named by id, not by path: give dataset or training_file.", param="path")
    order = read(body, _DATA_FIELDS, ignore=("method",))
    method = "sft" if body.get("method") is None else body["method"]
    if not isinstance(method, str) or method not in finetuning.FORMATS:
        raise Refusal(400, "invalid_value", f"method must be one of {', '.join(finetuning.FORMATS)}.", param="method")
    chosen = data.choose(order, project_filter(request))
    found = data.inspect(chosen, finetuning.FORMATS[method])
    return {
        "ok": True,
        "n_train": found["train"]["rows"],
        "n_valid": found["valid"]["rows"] if found["valid"] else 0,
        "format": found["train"]["format"],
        **found,
    }


async def submit(request: HttpRequest) -> dict[str, Any]:
    body = await read_json(request)
    return await sync_to_async(_submit)(request, body)


def _submit(request: HttpRequest, body: dict[str, Any]) -> dict[str, Any]:
    key = idempotency_key(request, body)
    job = earlier_job(request, finetuning.KIND, key)
    if job is None:
        order = finetuning.check(body, project_filter(request))
        with transaction.atomic():
            job = finetuning.submit(order, project=project_of(request), created_by=actor_of(request), idempotency_key=key)
            what = {"model": order["model"]}
            audit.record(actor_of(request), "finetune.submit", job.id, project=project_of(request), after=what)
    full = job.config["fine_tune_type"] == "full"
    return {
        "ok": True,
        "job_id": job.id,
        "adapter": None if full else finetuning.adapter_id(job.id),
        "model": finetuning.full_output(job.config, job.id) if full else None,
        "name": finetuning.model_name(job.config, job.id),
        "warnings": job.config["data"]["inspection"]["warnings"],
        "url": f"/api/jobs/{job.id}",
        "stream": f"/api/jobs/{job.id}/stream",
    }


async def fuse(request: HttpRequest) -> dict[str, Any]:
    return await _order(request, adapter_orders.FUSE, adapter_orders.check_fuse)


async def merge(request: HttpRequest) -> dict[str, Any]:
    return await _order(request, adapter_orders.MERGE, adapter_orders.check_merge)


async def export(request: HttpRequest) -> dict[str, Any]:
    return await _order(request, adapter_orders.EXPORT, adapter_orders.check_export)


async def evaluate(request: HttpRequest) -> dict[str, Any]:
    return await _order(request, evaluation.KIND, evaluation.check)


async def _order(request: HttpRequest, kind: str, check: Check) -> dict[str, Any]:
    body = await read_json(request)

    def make() -> Job:
        key = idempotency_key(request, body)
        job = earlier_job(request, kind, key)
        if job is not None:
            return job
        order = check(body, project_filter(request))
        with transaction.atomic():
            job = adapter_orders.submit(
                kind, order, project=project_of(request), created_by=actor_of(request), idempotency_key=key
            )
            audit.record(actor_of(request), f"{kind}.submit", job.id, project=project_of(request), after=order)
        return job

    job = await sync_to_async(make)()
    shown = {name: job.config[name] for name in ("output", "adapter", "adapters") if name in job.config}
    return {"ok": True, "job_id": job.id, **shown, "url": f"/api/jobs/{job.id}", "stream": f"/api/jobs/{job.id}/stream"}


def finish(request: HttpRequest, job_id: str) -> dict[str, Any]:
    """Stop at the next step and publish what there is."""
    job = find_job(request, job_id)
    if job.state in TERMINAL:
        raise Refusal(400, "job_ended", f"The job is already {job.state}.", param="id")
    TrainingRun.objects.update_or_create(job=job.id, defaults={"finish": True})
    audit.record(actor_of(request), "finetune.finish", job.id, project=job.project)
    return {"ok": True, "job_id": job.id}


def curve(request: HttpRequest, job_id: str) -> dict[str, Any]:
    """The run's figures by step, from the event log: the same after a reload, a resume or a year."""
    job = find_job(request, job_id)
    return {"ok": True, "job_id": job.id, **curve_of(job)}


def adapters(request: HttpRequest) -> dict[str, Any]:
    found = registry.visible(project_filter(request))
    for name in ("base_model", "method", "job"):
        if request.GET.get(name):
            found = found.filter(**{name: request.GET[name]})
    return {"ok": True, "adapters": [registry.adapter_json(adapter) for adapter in found[:500]]}


def adapter_detail(request: HttpRequest, adapter_id: str) -> dict[str, Any]:
    adapter = registry.find(adapter_id, project_filter(request))
    votes = blind.tallies(adapter.project, adapter.model or adapter.name)
    measured = adapter.metrics.get("evaluation_by_step", {})
    earlier = [
        {"id": one.id, "name": one.name, "step": one.step, "size_bytes": one.bytes, "evaluation": measured.get(str(one.step))}
        for one in registry.checkpoints(adapter)
    ]
    return {"ok": True, "adapter": {**registry.adapter_json(adapter), "checkpoints": earlier, "blind": votes}}


def adapter_delete(request: HttpRequest, adapter_id: str) -> dict[str, Any]:
    """Delete an adapter with its checkpoints, or, by its own id or name, one earlier checkpoint."""
    return {"ok": True, "deleted": registry.delete(adapter_id, project_filter(request), actor_of(request))}


def comparisons(request: HttpRequest) -> dict[str, Any]:
    """Blind votes by pair: ``?model=`` for the pairs of one name."""
    return {"ok": True, "pairs": blind.tallies(project_filter(request), request.GET.get("model", ""))}


async def vote(request: HttpRequest) -> dict[str, Any]:
    """One blind vote: ``{models: [a, b], winner: a | b | null, question?}``; answers the pair's tally."""
    body = await read_json(request)

    def count() -> dict[str, Any]:
        made = blind.vote(body, project=project_of(request), created_by=actor_of(request))
        found = blind.tallies(project_filter(request), made.first)
        return {"ok": True, "pair": next(pair for pair in found if pair["models"] == [made.first, made.second])}

    return await sync_to_async(count)()


def find_job(request: HttpRequest, job_id: str) -> Job:
    """
    Raises:
        Refusal: 404.
    """
    job = queries.visible(request).filter(pk=job_id, kind=finetuning.KIND).first()
    if job is None:
        raise Refusal(404, "job_not_found", "job not found")
    return job
