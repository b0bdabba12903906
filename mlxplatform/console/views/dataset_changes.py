"""What a person changes about a dataset, and what changed between two of its versions."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from mlxplatform.accounts.scopes import READ, WRITE
from mlxplatform.console.page import actor_of, page, seen
from mlxplatform.datasets import changing, diff, queries, rowsource
from mlxplatform.datasets.models import Dataset
from mlxplatform.inference.contract import Refusal


def _found(request: HttpRequest, dataset_id: str) -> Dataset:
    dataset = seen(request, Dataset.objects.filter(pk=dataset_id, preview=False)).first()
    if dataset is None:
        raise Http404
    return dataset


@page(READ)
def dataset_diff(request: HttpRequest, dataset_id: str) -> HttpResponse:
    dataset = _found(request, dataset_id)
    context: dict[str, Any] = {"title": f"Changes: {dataset.name}", "dataset": dataset}
    try:
        old, new = queries.compared(dataset, request.GET.dict())
    except Refusal as refusal:
        return render(request, "console/dataset_diff.html", {**context, "error": refusal.message}, status=refusal.status)
    found = diff.difference(rowsource.content(old), rowsource.content(new), rowsource.content(old))
    kinds = (("Came", found.added, found.added_rows), ("Went", found.removed, found.removed_rows))
    context |= {"old": old, "new": new, "common": found.common, "versions": dataset.versions.order_by("-number")}
    context["kinds"] = [
        {"name": name, "count": count, "rows": [json.dumps(row, indent=1, ensure_ascii=False) for row in rows]}
        for name, count, rows in kinds
    ]
    return render(request, "console/dataset_diff.html", context)


@require_POST
@page(WRITE)
def dataset_change(request: HttpRequest, dataset_id: str) -> HttpResponseRedirect:
    dataset = _found(request, dataset_id)
    body: dict[str, Any] = {name: request.POST[name] for name in ("name", "description") if name in request.POST}
    if "tags" in request.POST:
        body["tags"] = [tag for tag in request.POST["tags"].replace(",", " ").split() if tag]
    if "archived" in request.POST:
        body["archived"] = request.POST["archived"] == "true"
    try:
        changing.change(dataset, body, actor_of(request))
    except Refusal as refusal:
        messages.error(request, refusal.message)
    return redirect("console:dataset", dataset_id)
