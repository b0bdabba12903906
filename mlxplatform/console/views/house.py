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

from mlxplatform.accounts import audit
from mlxplatform.accounts.models import ApiKey, Person
from mlxplatform.accounts.scopes import ADMIN, OPERATE, READ, WRITE, grants
from mlxplatform.console.page import actor_of, identity_of, page, project_of, seen
from mlxplatform.files.models import StoredFile
from mlxplatform.inference.contract import Refusal
from mlxplatform.inference.models import StoredAnswer
from mlxplatform.jobs.models import Worker
from mlxplatform.operations import erasure
from mlxplatform.retention import policy

#: Backups listed.
_BACKUPS = 5


@page(READ)
def overview(request: HttpRequest) -> HttpResponse:
    answers = seen(request, StoredAnswer.objects.all())
    stored = seen(request, StoredFile.objects.filter(deleted_at=None))
    context: dict[str, Any] = {
        "title": "Data and upkeep",
        "holdings": erasure.holdings(project_of(request)),
        "makers": _makers(request),
        "history": {"count": answers.count(), "bytes": answers.aggregate(n=Sum("bytes"))["n"] or 0},
        "files": {"count": stored.count(), "bytes": stored.aggregate(n=Sum("bytes"))["n"] or 0},
        "keep": policy.current(),
        "stores": settings.ENV.store,
        "history_limit": policy.current().history_mb << 20,
        "retention": policy.described() if identity_of(request).is_admin else None,
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


def _makers(request: HttpRequest) -> list[tuple[str, str]]:
    """Whose work may be deleted alone: one's own; for administrators also that of the project's keys and people."""
    own = actor_of(request)
    found = [(own, "what I made")]
    if identity_of(request).is_admin:
        project = project_of(request)
        found += [(f"key:{key.id}", f"what key {key.name} made") for key in ApiKey.objects.filter(project=project)]
        named = Person.objects.filter(project=project).values_list("user__username", flat=True)
        found += [(f"user:{name}", f"what {name} made") for name in named if f"user:{name}" != own]
    return found


@require_POST
@page(WRITE)
def erase(request: HttpRequest) -> HttpResponseRedirect:
    """Delete everything of one's own project, or one maker's part of it; the project's name must be typed."""
    project, maker = project_of(request), request.POST.get("made_by", "")
    if request.POST.get("project") != project:
        messages.error(request, f"Nothing was deleted: type the project's name, {project}.")
        return redirect("console:house")
    if maker and maker not in dict(_makers(request)):
        messages.error(request, "Nothing was deleted: choose whose work is meant from the list.")
        return redirect("console:house")
    try:
        had = erasure.erase(project, actor=actor_of(request), maker=maker)
    except Refusal as refusal:
        messages.error(request, refusal.message)
    else:
        what = f"What {maker.partition(':')[2]} made in {project}" if maker else f"All data of {project}"
        messages.success(request, f"{what} is deleted: {sum(had.values())} rows and their files.")
    return redirect("console:house")


@require_POST
@page(ADMIN)
def keep(request: HttpRequest) -> HttpResponseRedirect:
    """How long things are kept; an empty field takes the environment's value."""
    values: dict[str, Any] = {}
    for name in policy.NAMES:
        raw = request.POST.get(name, "").strip()
        values[name] = int(raw) if raw.isascii() and raw.isdigit() and len(raw) < 12 else raw or None
    try:
        before, after = policy.change(values)
    except Refusal as refusal:
        messages.error(request, f"Nothing was changed: {refusal.message}")
    else:
        audit.record(actor_of(request), "retention.change", "platform", before=before, after=after)
        messages.success(request, "Saved. What is older goes within a minute, logs of jobs within an hour.")
    return redirect("console:house")
