"""Datasets in and out by hand: a file imported through a form, a version pushed to the hub."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from mlxplatform.accounts.scopes import WRITE
from mlxplatform.console.page import actor_of, page, project_of, seen
from mlxplatform.datasets import hub, hub_views, pushing
from mlxplatform.datasets.imports import order as imports
from mlxplatform.datasets.imports.opening import FORMATS
from mlxplatform.datasets.models import DatasetVersion
from mlxplatform.files import service as files
from mlxplatform.inference.contract import Refusal

_TEXTS = ("path", "hub", "name", "format", "on_bad_rows")
#: Bytes of an upload handed on at once.
_PIECE = 1024 * 1024


@page(WRITE)
def dataset_import(request: HttpRequest) -> HttpResponse:
    """A form with a file, a folder of this machine or a name on the hub; the import itself is a job."""
    error: Refusal | None = None
    if request.method == "POST":
        try:
            version = _ordered(request)
        except Refusal as refusal:
            error = refusal
        else:
            return redirect("console:dataset", version.dataset_id)
    context = {"title": "Import a dataset", "formats": FORMATS, "error": error, "given": request.POST}
    return render(request, "console/dataset_import.html", context, status=400 if error else 200)


def _ordered(request: HttpRequest) -> DatasetVersion:
    by, project = actor_of(request), project_of(request)
    body: dict[str, Any] = {name: request.POST[name].strip() for name in _TEXTS if request.POST.get(name, "").strip()}
    if "distinct" in request.POST:
        body["distinct"] = True
    stored = None
    if (given := request.FILES.get("file")) is not None:
        name = (given.name or "upload").rpartition("/")[2]
        pieces = given.chunks(_PIECE)
        stored = files.store(pieces, name, "user_data", project=project, created_by=by, limit=files.size_limit())
        body["file_id"] = stored.id
    try:
        order = imports.check(body, project)
    except Refusal:
        if stored is not None:
            files.delete(stored)
        raise
    return imports.submit(order, project=project, created_by=by)[1]


@require_POST
@page(WRITE)
def dataset_push(request: HttpRequest, dataset_id: str) -> HttpResponseRedirect:
    """Keep the token, when one was typed, and start the push of the version that was looked at."""
    raw = request.POST.get("version", "")
    versions = seen(request, DatasetVersion.objects.filter(dataset=dataset_id, dataset__preview=False), "dataset__project")
    version = versions.select_related("dataset").filter(number=int(raw)).first() if raw.isdecimal() and len(raw) < 10 else None
    if version is None:
        raise Http404
    by, project = actor_of(request), version.dataset.project
    body = {"repo": request.POST.get("repo", "").strip(), "private": "private" in request.POST}
    try:
        if token := request.POST.get("token", "").strip():
            hub.keep_token(project, hub_views.checked_token(token), by)
        job = pushing.submit(version, body, project=project, created_by=by, idempotency_key=None)
    except Refusal as refusal:
        messages.error(request, refusal.message)
        return redirect("console:dataset", dataset_id)
    return redirect("console:job", job.id)
