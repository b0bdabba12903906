"""Datasets: the list, one dataset with its rows and quality, and the wizard that makes a new one."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from mlxplatform.accounts.scopes import READ, WRITE
from mlxplatform.console import dataset_again, dataset_filters
from mlxplatform.console.page import actor_of, page, project_of, seen
from mlxplatform.datasets import rowsource, rowtext
from mlxplatform.datasets import submit as orders
from mlxplatform.datasets.formats import EXPORTS
from mlxplatform.datasets.lineage import lineage
from mlxplatform.datasets.models import Dataset, DatasetRow, DatasetVersion, HubToken
from mlxplatform.datasets.queries import latest_of, saying, tagged
from mlxplatform.datasets.templates.registry import TEMPLATES
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs.models import Job, JobEvent
from mlxplatform.jobs.states import TERMINAL
from mlxplatform.library import local_models

_PAGE = 50
#: Bars of the length histogram.
_BARS = 12
#: Rows whose lengths are looked at.
_SAMPLE = 10_000
#: Options of a run that the wizard offers beside the template's own fields.
_NUMBERS = ("rows", "seed")


@page(READ)
def dataset_list(request: HttpRequest) -> HttpResponse:
    archived, tag = request.GET.get("archived") == "1", request.GET.get("tag", "").strip()
    shown = seen(request, Dataset.objects.filter(archived_at__isnull=not archived, preview=False))
    listing = Paginator(tagged(shown, tag) if tag else shown, _PAGE).get_page(request.GET.get("page"))
    datasets = list(listing)
    latest = latest_of(datasets)
    rows = [{"dataset": dataset, "latest": latest.get(dataset.id)} for dataset in datasets]
    query = urlencode({**({"archived": "1"} if archived else {}), **({"tag": tag} if tag else {})})
    context = {"title": "Datasets", "listing": listing, "rows": rows, "query": query, "archived": archived, "tag": tag}
    return render(request, "console/datasets.html", context)


@page(READ)
def dataset_detail(request: HttpRequest, dataset_id: str) -> HttpResponse:
    dataset = seen(request, Dataset.objects.filter(pk=dataset_id, preview=False)).first()
    if dataset is None:
        raise Http404
    version = _chosen_version(dataset, request.GET.get("version", ""))
    chosen = {name: request.GET.get(name, "").strip() for name in ("state", "reason", "q")}
    rows: Any = version.rows.filter(**{name: chosen[name] for name in ("state", "reason") if chosen[name]}).order_by("ordinal")
    if chosen["q"]:
        rows = saying(rows, chosen["q"])
    if rowsource.in_files(version):
        rows = rowsource.FileRows(version)
    listing = Paginator(rows, _PAGE).get_page(request.GET.get("page"))
    context = {
        "title": dataset.name,
        "dataset": dataset,
        "version": version,
        "versions": dataset.versions.order_by("-number"),
        "job": Job.objects.filter(pk=version.job).first(),
        "progress": progress_of(version),
        "taken": _taken(version),
        "listing": listing,
        "samples": [
            (row, json.dumps(row.content, indent=1, ensure_ascii=False) if row.content else row.detail) for row in listing
        ],
        "chosen": chosen,
        "states": DatasetRow.State.values,
        "reasons": sorted({*version.counts.get("dropped", {}), *progress_of(version).get("dropped", {})}),
        "in_files": rowsource.in_files(version),
        "again": dataset.template in TEMPLATES and dataset.project == project_of(request),
        "lineage": lineage(dataset),
        "exports": EXPORTS,
        "hub_token": HubToken.objects.filter(project=dataset.project).first(),
        "bars": _histogram(_lengths(version)),
        "query": urlencode({"version": version.number, **{name: value for name, value in chosen.items() if value}}),
    }
    return render(request, "console/dataset.html", context)


@page(WRITE)
def dataset_new(request: HttpRequest) -> HttpResponse:
    template = TEMPLATES.get(request.GET.get("template", ""))
    if template is None:
        made = [one for one in TEMPLATES.values() if not one.needs_llm], [one for one in TEMPLATES.values() if one.needs_llm]
        groups = list(zip(("From what you have", "Written by a model"), made, strict=True))
        return render(request, "console/dataset_choose.html", {"title": "New dataset", "groups": groups})
    error: Refusal | None = None
    base = dataset_again.base_of(request, template)
    given: Any = dataset_again.form_of(base, template) if base is not None and request.method != "POST" else request.POST
    if request.method == "POST":
        body = _order(request, template.id, [field.name for field in template.fields])
        if base is not None:
            body = dataset_again.continued(body, base)
        by, project = actor_of(request), project_of(request)
        try:
            order = orders.check(body, project)
            if request.POST.get("run") == "preview":
                job = orders.submit_preview(order, orders.PREVIEW_ROWS, project=project, created_by=by)
                return redirect("console:dataset-preview", job.id)
            _, version = orders.submit(order, project=project, created_by=by)
        except Refusal as refusal:
            error = refusal
        else:
            return redirect("console:dataset", version.dataset_id)
    fields = [
        {"field": field, "value": given.get(field.name, "" if field.default is None else field.default)}
        for field in template.fields
    ]
    context = {
        "title": f"New dataset: {template.label}" if base is None else f"Next version: {base.dataset.name}",
        "template": template,
        "base": base,
        "fields": fields,
        "error": error,
        "models": [model for model in local_models.scan() if model.kind == "chat" and not model.obstacle]
        if template.needs_llm
        else [],
        "given": given,
        "filters": dataset_filters.inputs(given),
        "filters_open": bool(error and error.param and error.param.startswith("filters")),
    }
    return render(request, "console/dataset_new.html", context, status=400 if error else 200)


@page(WRITE)
def dataset_preview(request: HttpRequest, job_id: str) -> HttpResponse:
    """A trial's rows with every prompt and answer, the forecast, and the button that runs it all."""
    trials = DatasetVersion.objects.filter(job=job_id, dataset__preview=True).select_related("dataset")
    version = seen(request, trials, "dataset__project").first()
    job = Job.objects.filter(pk=job_id).first()
    if version is None or job is None:
        raise Http404
    if request.method == "POST":
        try:
            _, full = orders.submit(orders.of_preview(version), project=version.dataset.project, created_by=actor_of(request))
        except Refusal as refusal:
            messages.error(request, refusal.message)
            return redirect("console:dataset-preview", job_id)
        return redirect("console:dataset", full.dataset_id)
    shown = job.result or {}
    context = {
        "title": f"Preview: {version.dataset.name}",
        "job": job,
        "ended": job.state in TERMINAL,
        "forecast": shown.get("forecast"),
        "rows": [
            {
                "row": row,
                "text": json.dumps(row["content"], indent=1, ensure_ascii=False) if row["content"] else row["detail"],
                "calls": [call for call in shown.get("calls", ()) if call["source"] == row["source"]],
            }
            for row in shown.get("rows", ())
        ],
    }
    return render(request, "console/dataset_preview.html", context)


def _order(request: HttpRequest, template: str, names: list[str]) -> dict[str, Any]:
    """The wizard's form as the body the API takes; numbers stay text where they are no numbers, to be refused there."""
    # Browsers send line ends their own way; a text that was not touched has to stay the same text.
    inputs = {name: request.POST.get(name, "").replace("\r\n", "\n") for name in names}
    body: dict[str, Any] = {"template": template, "inputs": inputs}
    for name in ("name", "model"):
        if request.POST.get(f"run_{name}"):
            body[name] = request.POST[f"run_{name}"]
    for name in _NUMBERS:
        if raw := request.POST.get(f"run_{name}", "").strip():
            body[name] = int(raw) if raw.isdecimal() and len(raw) < 16 else raw
    if filters := dataset_filters.of_form(request.POST):
        body["filters"] = filters
    return body


def _chosen_version(dataset: Dataset, raw: str) -> DatasetVersion:
    versions = dataset.versions.order_by("-number")
    version = versions.filter(number=int(raw)).first() if raw.isdecimal() and len(raw) < 10 else versions.first()
    if version is None:
        raise Http404
    return version


def progress_of(version: DatasetVersion) -> dict[str, Any]:
    """What the running job said last: accepted rows, dropped ones by reason, rate and seconds left."""
    if version.state != DatasetVersion.State.BUILDING:
        return {}
    told = JobEvent.objects.filter(job=version.job, type="stage", payload__has_key="accepted").order_by("-seq").first()
    return dict(told.payload) if told else {}


def _taken(version: DatasetVersion) -> dict[str, Any]:
    """What the run took beside what its preview expected of it."""
    expected, report = version.report.get("forecast"), version.report
    if not expected or "seconds" not in report:
        return {}
    accepted, made = version.counts.get("accepted", 0), version.counts.get("made", 0)
    reused = report.get("reused", {})
    return {
        "expected": expected,
        "report": report,
        "rows": accepted,
        "acceptance": accepted / made if made else 0.0,
        "tokens": report["completion_tokens"] + reused.get("completion_tokens", 0),
        "reused": reused.get("calls", 0),
    }


def _lengths(version: DatasetVersion) -> list[int]:
    """Characters of accepted rows, of a sample where there are many; imported rows from the file's beginning."""
    if rowsource.in_files(version):
        return [rowtext.length(row) for _, _, row in rowsource.window(version, 0, _SAMPLE)]
    return list(version.rows.filter(state=DatasetRow.State.ACCEPTED).values_list("chars", flat=True)[:_SAMPLE])


def _histogram(lengths: list[int]) -> list[dict[str, Any]]:
    """Bars over the lengths of rows, in characters; ``share`` of the tallest bar."""
    if not lengths:
        return []
    low, high = min(lengths), max(lengths)
    width = max(1, -(-(high - low + 1) // _BARS))
    counts = [0] * _BARS
    for length in lengths:
        counts[(length - low) // width] += 1
    tallest = max(counts)
    return [
        {"label": f"{low + i * width}–{low + (i + 1) * width - 1}", "count": count, "share": count / tallest}
        for i, count in enumerate(counts)
        if low + i * width <= high
    ]
