"""Data and upkeep: what a project has stored, how long it is kept, deleting it; and for operators how the house stands."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.db.models import Sum
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from mlxplatform.accounts.scopes import OPERATE, READ, WRITE, grants
from mlxplatform.console.page import actor_of, identity_of, page, project_of, seen
from mlxplatform.files.models import StoredFile
from mlxplatform.inference.contract import Refusal
from mlxplatform.inference.models import StoredAnswer
from mlxplatform.jobs.models import Worker
from mlxplatform.operations import erasure

#: Backups listed.
_BACKUPS = 5


@page(READ)
def overview(request: HttpRequest) -> HttpResponse:
    answers = seen(request, StoredAnswer.objects.all())
    stored = seen(request, StoredFile.objects.filter(deleted_at=None))
    context: dict[str, Any] = {
        "title": "Data and upkeep",
        "holdings": erasure.holdings(project_of(request)),
        "history": {"count": answers.count(), "bytes": answers.aggregate(n=Sum("bytes"))["n"] or 0},
        "files": {"count": stored.count(), "bytes": stored.aggregate(n=Sum("bytes"))["n"] or 0},
        "keep": settings.ENV,
        "history_limit": settings.ENV.history_mb << 20,
        "may_erase": grants(tuple(identity_of(request).scopes), WRITE),
    }
    if grants(tuple(identity_of(request).scopes), OPERATE):
        context["house"] = _house()
    return render(request, "console/house.html", context)


def _house() -> dict[str, Any]:
    """The machine's side: disk, workers, backups."""
    disk = shutil.disk_usage(settings.HOME)
    folder = Path(settings.HOME) / "backups"
    found = sorted((path for path in folder.glob("*") if path.is_file()), key=lambda path: path.stat().st_mtime, reverse=True)
    backups = [
        {"name": path.name, "bytes": path.stat().st_size, "at": dt.datetime.fromtimestamp(path.stat().st_mtime, dt.UTC)}
        for path in found[:_BACKUPS]
    ]
    return {"free": disk.free, "total": disk.total, "backups": backups, "workers": Worker.objects.order_by("queue", "id")}


@require_POST
@page(WRITE)
def erase(request: HttpRequest) -> HttpResponseRedirect:
    """Delete everything of one's own project; its name must be typed."""
    project = project_of(request)
    if request.POST.get("project") != project:
        messages.error(request, f"Nothing was deleted: type the project's name, {project}, to delete all of it.")
        return redirect("console:house")
    try:
        had = erasure.erase(project, actor=actor_of(request))
    except Refusal as refusal:
        messages.error(request, refusal.message)
    else:
        messages.success(request, f"All data of {project} is deleted: {sum(had.values())} rows and their files.")
    return redirect("console:house")
