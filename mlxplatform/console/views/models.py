"""Models: what is on this machine, what quantizing cost, and the form that quantizes one."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render

from mlxplatform.accounts.scopes import READ, WRITE
from mlxplatform.console.forms import body_of, inputs_for
from mlxplatform.console.page import actor_of, page, project_of, seen, sight_of
from mlxplatform.datasets.models import DatasetVersion
from mlxplatform.inference.contract import Refusal
from mlxplatform.library import local_models
from mlxplatform.training import finetuning, quantization, reports
from mlxplatform.training.models import Adapter, QualityReport

#: Reports shown on the library page.
_REPORTS = 50
#: Datasets offered for training, newest first.
_DATASETS = 200


@page(READ)
def library(request: HttpRequest) -> HttpResponse:
    context = {
        "title": "Library",
        "models": local_models.scan(settings.HOME),
        "adapters": seen(request, Adapter.objects.order_by("-created_at"))[:_REPORTS],
        "reports": [reports.report_json(report) for report in seen(request, QualityReport.objects.all())[:_REPORTS]],
    }
    return render(request, "console/library.html", context)


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
        "inputs": inputs_for(quantization.FIELDS, _given(request), choices={"model": _chat_models()}),
        "error": error,
        "submit": "Quantize",
    }
    return render(request, "console/order.html", context, status=400 if error else 200)


@page(WRITE)
def finetune(request: HttpRequest) -> HttpResponse:
    error: Refusal | None = None
    if request.method == "POST":
        try:
            order = finetuning.check(body_of(request.POST, finetuning.FIELDS), sight_of(request))
            job = finetuning.submit(order, project=project_of(request), created_by=actor_of(request))
        except Refusal as refusal:
            error = refusal
        else:
            return redirect("console:job", job.id)
    ready = DatasetVersion.objects.filter(state=DatasetVersion.State.READY, trainable=True)
    datasets = seen(request, ready, "dataset__project").values_list("dataset", flat=True)
    choices = {"model": _chat_models(), "dataset": list(dict.fromkeys(datasets.order_by("-created_at")[:_DATASETS]))}
    context = {
        "title": "Fine-tune",
        "lead": "Teach a model from a dataset. The run can be paused, stopped and resumed; its curve is on the job's page.",
        "inputs": inputs_for(finetuning.FIELDS, _given(request), choices=choices),
        "error": error,
        "submit": "Start training",
    }
    return render(request, "console/order.html", context, status=400 if error else 200)


def _given(request: HttpRequest) -> QueryDict:
    return request.POST if request.method == "POST" else request.GET


def _chat_models() -> list[str]:
    return [model.id for model in local_models.scan(settings.HOME) if model.kind == "chat"]
