"""Schedules: what starts by the clock, when next, what became of it; make, pause, run now, delete."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from mlxplatform.accounts import audit
from mlxplatform.accounts.scopes import READ, WRITE
from mlxplatform.console.page import actor_of, identity_of, page, project_of, seen
from mlxplatform.inference.contract import Refusal
from mlxplatform.schedules import service, starters
from mlxplatform.schedules.models import Firing, Schedule
from mlxplatform.schedules.wire import fill, schedule_json

#: Past runs shown.
_FIRINGS = 20


@page(READ)
def schedule_list(request: HttpRequest) -> HttpResponse:
    return _page(request)


def _page(request: HttpRequest, error: Refusal | None = None) -> HttpResponse:
    context = {
        "title": "Schedules",
        "schedules": [schedule_json(schedule) for schedule in seen(request, Schedule.objects.all())],
        "firings": seen(request, Firing.objects.select_related("schedule"), "schedule__project").order_by("-at")[:_FIRINGS],
        "kinds": starters.names(),
        "misfires": Schedule.MISFIRES,
        "may_write": WRITE in identity_of(request).scopes,
        "given": request.POST,
        "error": error,
    }
    return render(request, "console/schedules.html", context, status=400 if error else 200)


@page(WRITE)
def schedule_new(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        return redirect("console:schedules")
    actor, project = actor_of(request), project_of(request)
    try:
        schedule = fill(Schedule(project=project, created_by=actor), _body(request), new=True)
    except Refusal as refusal:
        return _page(request, refusal)
    schedule.save()
    after = {"kind": schedule.kind, "cron": schedule.cron}
    audit.record(actor, "schedule.create", schedule.id, project=project, after=after)
    messages.success(request, f"{schedule.name} is planned.")
    return redirect("console:schedules")


def _body(request: HttpRequest) -> dict[str, Any]:
    body: dict[str, Any] = {name: request.POST.get(name, "") for name in ("name", "kind", "cron", "misfire")}
    body["timezone"] = request.POST.get("timezone") or "UTC"
    raw = request.POST.get("config", "").strip() or "{}"
    try:
        body["config"] = json.loads(raw)
    except ValueError:
        raise Refusal(400, "invalid_value", "config must be a JSON object", param="config") from None
    return body


@require_POST
@page(WRITE)
def schedule_action(request: HttpRequest) -> HttpResponseRedirect:
    schedule = seen(request, Schedule.objects.filter(pk=request.POST.get("schedule", ""))).first()
    if schedule is None:
        raise Http404
    actor = actor_of(request)
    action = request.POST.get("action")
    try:
        if action == "run":
            service.run_now(schedule, actor)
        elif action in {"pause", "resume"}:
            service.set_paused(schedule, action == "pause")
        elif action == "delete":
            schedule.delete()
        else:
            raise Http404
    except Refusal as refusal:
        messages.error(request, refusal.message)
    else:
        audit.record(actor, f"schedule.{action}", request.POST["schedule"], project=schedule.project)
        messages.success(request, f"{schedule.name}: {action}.")
    return redirect("console:schedules")
