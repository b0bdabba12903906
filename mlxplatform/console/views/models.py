"""Models: what is on this machine and what was chosen for it, and the forms that quantize and fine-tune."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asgiref.sync import async_to_sync
from django.conf import settings
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render

from mlxplatform.accounts.scopes import OPERATE, READ, WRITE, grants
from mlxplatform.broker.connections import BROKER_ERRORS
from mlxplatform.console import training_data
from mlxplatform.console.forms import Choice, Offered, body_of, inputs_for
from mlxplatform.console.page import actor_of, identity_of, page, project_of, seen, sight_of
from mlxplatform.datasets.models import DatasetVersion
from mlxplatform.http.fields import Field
from mlxplatform.inference.contract import Refusal
from mlxplatform.library import adoption, choices, fit, local_models, reclaim, removal
from mlxplatform.library.machine import this_machine
from mlxplatform.training import finetuning, quantization, reports
from mlxplatform.training.models import Adapter, QualityReport

#: Reports shown on the library page.
_REPORTS = 50
#: Versions of datasets offered for training, newest first.
_VERSIONS = 200
#: What a person decides first; the rest has defaults that suit most and waits below.
_QUANTIZE_FIRST = ("model", "method", "bits", "target_bpw", "output", "report")
_FINETUNE_FIRST = ("model", "dataset", "suffix", "method", "iters", "batch_size", "learning_rate", "max_seq_length")


@page(READ)
def library(request: HttpRequest) -> HttpResponse:
    machine, chosen = this_machine(settings.ENV.memory_budget_mb << 20), choices.everything()
    rows = [
        {
            "model": model,
            "fit": fit.assess(model, machine),
            "pinned": model.id in chosen.pinned,
            "default": chosen.defaults.get(model.kind) == model.id,
            "preset": model.id in chosen.presets,
        }
        for model in local_models.scan(settings.HOME)
    ]
    context = {
        "title": "Library",
        "machine": machine,
        "operates": grants(tuple(identity_of(request).scopes), OPERATE),
        "models": rows,
        "adapters": seen(request, Adapter.objects.order_by("-created_at"))[:_REPORTS],
        "reports": [reports.report_json(report) for report in seen(request, QualityReport.objects.all())[:_REPORTS]],
        "foreign": [item.describe() for item in adoption.found()],
        "plan": _reclaimable(),
    }
    return render(request, "console/library.html", context)


def _reclaimable() -> list[dict[str, Any]]:
    """What could be deleted; nothing while nobody can tell what is in memory."""
    try:
        resident = async_to_sync(removal.serving)()
    except BROKER_ERRORS:
        return []
    return [item.describe() for item in reclaim.plan(resident)]


@page(WRITE)
def quantize(request: HttpRequest) -> HttpResponse:
    error: Refusal | None = None
    if request.method == "POST":
        try:
            order = quantization.check(body_of(request.POST, quantization.FIELDS))
            job = quantization.submit(order, project=project_of(request), created_by=actor_of(request))
        except Refusal as refusal:
            error = refusal
        else:
            return redirect("console:job", job.id)
    context = {
        "title": "Quantize",
        "lead": "Make a smaller copy of a model and see what it lost, measured on held-out text.",
        **_controls(request, quantization.FIELDS, _QUANTIZE_FIRST, {"model": _chat_models()}, error),
        "submit": "Quantize",
    }
    return render(request, "console/order.html", context, status=400 if error else 200)


@page(WRITE)
def finetune(request: HttpRequest) -> HttpResponse:
    error: Refusal | None = None
    checked: dict[str, Any] | None = None
    if request.method == "POST":
        try:
            order = finetuning.check(body_of(request.POST, finetuning.FIELDS), sight_of(request))
            if request.POST.get("do") == "check":
                checked = _looked_through(order)
            else:
                job = finetuning.submit(order, project=project_of(request), created_by=actor_of(request))
                return redirect("console:job", job.id)
        except Refusal as refusal:
            error = refusal
    offered: Offered = {"model": _chat_models(), "dataset": _datasets(request)}
    context = {
        "title": "Fine-tune",
        "lead": "Teach a model from a dataset. The run can be paused, stopped and resumed; its curve is on the job's page.",
        **_controls(request, finetuning.FIELDS, _FINETUNE_FIRST, offered, error),
        "checked": checked,
        "can_check": True,
        "submit": "Start training",
    }
    return render(request, "console/order.html", context, status=400 if error else 200)


def _datasets(request: HttpRequest) -> list[Choice]:
    ready = DatasetVersion.objects.filter(state=DatasetVersion.State.READY, trainable=True, dataset__archived_at=None)
    versions = seen(request, ready.select_related("dataset"), "dataset__project")
    return training_data.choices(versions.order_by("-created_at", "-number")[:_VERSIONS])


def _looked_through(order: dict[str, Any]) -> dict[str, Any]:
    """What the data holds and what the run would need, before anything is ordered."""
    model = finetuning.base(order["model"])
    budget = this_machine(settings.ENV.memory_budget_mb << 20).budget
    return {"inspection": order["data"]["inspection"], "needed": finetuning.estimate_bytes(model, order), "budget": budget}


def _controls(
    request: HttpRequest, fields: Sequence[Field], first: Sequence[str], offered: Offered, error: Refusal | None
) -> dict[str, Any]:
    """The form's controls: what is decided first, and the rest, which opens when something in it was given or is wrong."""
    given = request.POST if request.method == "POST" else _linked(request.GET, fields, offered)
    by_name = {field.name: field for field in fields}
    rest = [field for field in fields if field.name not in first]
    touched = [field.name for field in rest if field.kind != "bool" and given.get(field.name, "") not in {"", str(field.default)}]
    return {
        "inputs": inputs_for([by_name[name] for name in first], given, choices=offered),
        "more": inputs_for(rest, given, choices=offered),
        "more_open": bool(touched) or (error is not None and error.param in {field.name for field in rest}),
        "error": error,
    }


def _linked(given: QueryDict, fields: Sequence[Field], offered: Offered) -> QueryDict:
    """What a link gives. It says nothing of the switches it leaves out, unlike a form: they keep their defaults."""
    filled = given.copy()
    if "dataset" in given:
        filled["dataset"] = training_data.chosen(given.get("dataset", ""), offered.get("dataset", ()))
    for field in fields:
        if field.kind == "bool" and field.default:
            filled.setdefault(field.name, "on")
    return filled


def _chat_models() -> list[str]:
    return [model.id for model in local_models.scan(settings.HOME) if model.kind == "chat" and not model.obstacle]
