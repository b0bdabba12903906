"""Models: what is on this machine, what quantizing cost, and the form that quantizes one."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from mlxplatform.accounts.scopes import READ, WRITE
from mlxplatform.console.forms import body_of, inputs_for
from mlxplatform.console.page import page
from mlxplatform.inference.contract import Refusal
from mlxplatform.library import local_models
from mlxplatform.training import quantization, reports
from mlxplatform.training.models import QualityReport

#: Reports shown on the library page.
_REPORTS = 50


@page(READ)
def library(request: HttpRequest) -> HttpResponse:
    context = {
        "title": "Library",
        "models": local_models.scan(settings.HOME),
        "reports": [reports.report_json(report) for report in QualityReport.objects.all()[:_REPORTS]],
    }
    return render(request, "console/library.html", context)


@page(WRITE)
def quantize(request: HttpRequest) -> HttpResponse:
    error: Refusal | None = None
    if request.method == "POST":
        try:
            order = quantization.check(body_of(request.POST, quantization.FIELDS))
            job = quantization.submit(order, project="default", created_by=request.user.get_username())
        except Refusal as refusal:
            error = refusal
        else:
            return redirect("console:job", job.id)
    given: Any = request.POST if error else request.GET
    context = {
        "title": "Quantize",
        "lead": "Make a smaller copy of a model and see what it lost, measured on held-out text.",
        "inputs": inputs_for(quantization.FIELDS, given, choices={"model": _chat_models()}),
        "error": error,
        "submit": "Quantize",
    }
    return render(request, "console/order.html", context, status=400 if error else 200)


def _chat_models() -> list[str]:
    return [model.id for model in local_models.scan(settings.HOME) if model.kind == "chat"]
