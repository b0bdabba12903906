"""What fine-tuning made: one adapter with its figures, what can be done with it, and several runs side by side."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from mlxplatform.accounts import audit
from mlxplatform.accounts.scopes import READ, WRITE
from mlxplatform.console import charts, training_data
from mlxplatform.console.forms import body_of, inputs_for
from mlxplatform.console.page import actor_of, page, seen, sight_of
from mlxplatform.datasets.models import DatasetVersion
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs.models import Job
from mlxplatform.training import adapter_orders, blind, evaluation, registry
from mlxplatform.training.curves import curve_of
from mlxplatform.training.models import Adapter

#: Runs drawn in one chart: more lines cannot be told apart.
_MOST_RUNS = 5
#: Runs offered for comparing, and versions of datasets for measuring on.
_OFFERED = 50
#: Where an order says what it learns from.
_DATA = ("data", "dataset", "training_file", "validation_file")
_EVALUATION = tuple(field for field in evaluation.FIELDS if field.name not in {"adapter", "measures"})


@page(READ)
def adapter(request: HttpRequest, adapter_id: str) -> HttpResponse:
    made = _find(request, adapter_id)
    job = Job.objects.filter(pk=made.job).first() if made.job else None
    context = {
        "title": made.name,
        "adapter": made,
        "job": job,
        "metrics": made.metrics,
        "evaluation": made.metrics.get("evaluation"),
        "chart": charts.losses({"loss": curve_of(job)}) if job else None,
        "earlier": _earlier(made),
        "votes": blind.tallies(sight_of(request), made.model or made.name),
        "measures": evaluation.MEASURES,
        "inputs": inputs_for(_EVALUATION, request.GET, choices={"dataset": training_data.choices(_held_out(request))}),
        "formats": ("gguf",) if made.model else adapter_orders.FORMATS,
        "config_text": json.dumps(made.config, indent=2, ensure_ascii=False),
        "lineage_text": json.dumps(made.lineage, indent=2, ensure_ascii=False),
    }
    return render(request, "console/adapter.html", context)


@require_POST
@page(WRITE)
def adapter_action(request: HttpRequest, adapter_id: str) -> HttpResponse:
    """Evaluate, fuse or export it, each a job; or delete it."""
    made = _find(request, adapter_id)
    actor = actor_of(request)
    action = request.POST.get("action", "")
    try:
        if action == "delete":
            registry.delete(made.id, made.project, actor)
            messages.success(request, f"Deleted {made.name}.")
            return redirect("console:models")
        job = _ordered(action, made, request, actor)
    except Refusal as refusal:
        messages.error(request, refusal.message)
        return redirect("console:adapter", made.id)
    return redirect("console:job", job.id)


def _held_out(request: HttpRequest) -> list[DatasetVersion]:
    """Versions with rows to measure on, newest first."""
    ready = DatasetVersion.objects.filter(state=DatasetVersion.State.READY, trainable=True, dataset__archived_at=None)
    versions = seen(request, ready.select_related("dataset"), "dataset__project").order_by("-created_at", "-number")
    return [version for version in versions[:_OFFERED] if version.files.get("valid.jsonl", {}).get("rows")]


def _earlier(made: Adapter) -> list[dict[str, Any]]:
    measured = made.metrics.get("evaluation_by_step", {})
    return [{"files": one, "evaluation": measured.get(str(one.step))} for one in registry.checkpoints(made)]


def _ordered(action: str, made: Adapter, request: HttpRequest, actor: str) -> Job:
    """``step``, where given, is the id of one of its earlier checkpoints.

    Raises:
        Refusal: that checkpoint was deleted meanwhile; or what its order says.
    """
    wanted = made.id
    if asked := request.POST.get("step", ""):
        step = registry.find_checkpoint(asked, made.project)
        if step is None or step.parent != made.id:
            raise Refusal(404, "adapter_not_found", "That checkpoint is not there any more.", param="step")
        wanted = step.id
    if action == "evaluate":
        body = body_of(request.POST, _EVALUATION) | {"adapter": wanted, "measures": request.POST.getlist("measures")}
        kind, order = evaluation.KIND, evaluation.check(body, sight_of(request))
    elif action == "fuse":
        kind, order = adapter_orders.FUSE, adapter_orders.check_fuse({"adapter": wanted}, sight_of(request))
    elif action == "export":
        body = {"adapter": wanted, "format": request.POST.get("format")}
        kind, order = adapter_orders.EXPORT, adapter_orders.check_export(body, sight_of(request))
    else:
        raise Http404
    with transaction.atomic():
        job = adapter_orders.submit(kind, order, project=made.project, created_by=actor, idempotency_key=None)
        audit.record(actor, f"{kind}.submit", job.id, project=made.project, after=order)
    return job


@page(READ)
def runs(request: HttpRequest) -> HttpResponse:
    """The curves of several fine-tunes in one chart, and what they were told, side by side."""
    visible = seen(request, Job.objects.filter(kind="finetune").order_by("-created_at", "-id"))
    found = list(visible[:_OFFERED])
    wanted = request.GET.getlist("job")[:_MOST_RUNS]
    chosen = list(visible.filter(pk__in=wanted))
    curves = {job.id: curve_of(job) for job in chosen}
    names = sorted({name for job in chosen for name in job.config if name not in _DATA})
    rows = [{"name": name, "values": [job.config.get(name) for job in chosen]} for name in names]
    rows.insert(0, {"name": "data", "values": _data_of(chosen)})
    context = {
        "title": "Compare runs",
        "offered": list(zip(found, _data_of(found), strict=True)),
        "chosen": chosen,
        "wanted": wanted,
        "chart": charts.losses(curves) if chosen else None,
        "ends": [_end(job, curves[job.id]) for job in chosen],
        "differing": [row for row in rows if len({json.dumps(value) for value in row["values"]}) > 1],
    }
    return render(request, "console/runs.html", context)


def _data_of(jobs: list[Job]) -> list[str]:
    """What each was trained on; nothing for an order that does not say."""
    return training_data.names([job.config.get("data", {}) for job in jobs])


def _end(job: Job, curve: dict[str, Any]) -> dict[str, Any]:
    """The last figures of a run."""
    train, val = (curve[kind][-1] if curve[kind] else {} for kind in ("train", "val"))
    best = min((point["loss"] for point in curve["val"]), default=None)
    return {"job": job, "train": train, "val": val, "best": best}


def _find(request: HttpRequest, adapter_id: str) -> Adapter:
    made = seen(request, Adapter.objects.filter(pk=adapter_id)).first()
    if made is None:
        raise Http404
    return made
