"""What quantizing cost: one report in full, and all of one baseline against each other."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render

from mlxplatform.accounts.scopes import READ
from mlxplatform.console import charts
from mlxplatform.console.page import page, seen
from mlxplatform.training import reports
from mlxplatform.training.models import QualityReport

#: Reports of one baseline that are drawn.
_MOST = 200


@page(READ)
def report(request: HttpRequest, job_id: str) -> HttpResponse:
    found = seen(request, QualityReport.objects.filter(pk=job_id)).first()
    if found is None:
        raise Http404
    quality = found.figures.get("quality")
    context = {
        "title": found.model,
        "report": reports.report_json(found),
        "quality": quality,
        "chart": charts.divergence(quality) if quality else None,
        "mixed": found.figures.get("mixed"),
        "learning": found.figures.get("learning"),
        "saved": 1 - found.bytes / found.figures["baseline_bytes"] if found.figures.get("baseline_bytes") else None,
    }
    return render(request, "console/report.html", context)


@page(READ)
def compare(request: HttpRequest) -> HttpResponse:
    """The Pareto chart of a baseline: which of its copies no other beats in size and divergence."""
    visible = seen(request, QualityReport.objects.all())
    baselines = list(visible.order_by("baseline").values_list("baseline", flat=True).distinct())
    chosen = request.GET.get("baseline") or (baselines[0] if baselines else "")
    found = list(visible.filter(baseline=chosen)[:_MOST])
    points = reports.pareto(found)
    best = {point["job_id"] for point in points if point["best"]}
    context = {
        "title": "Compare quantized models",
        "baselines": baselines,
        "chosen": chosen,
        "chart": charts.pareto(points) if points else None,
        "reports": [{**reports.report_json(one), "best": one.job in best} for one in sorted(found, key=lambda one: one.bytes)],
    }
    return render(request, "console/reports.html", context)
