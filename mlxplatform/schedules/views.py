"""``/api/schedules``: list, make, change, remove, pause, resume, run now, and what became of past times."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from mlxplatform.accounts import audit
from mlxplatform.http.body import read_json
from mlxplatform.http.errors import error_response, json_response, method_refusal
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs.views import actor_of
from mlxplatform.schedules import service
from mlxplatform.schedules.models import Schedule
from mlxplatform.schedules.wire import fill, firing_json, schedule_json

#: Past due times shown.
SHOWN_BACK = 50


def visible(request: HttpRequest) -> QuerySet[Schedule]:
    """An admin sees every schedule, others those of their project."""
    identity = getattr(request, "identity", None)
    if identity is not None and not identity.is_admin:
        return Schedule.objects.filter(project=_project(request))
    return Schedule.objects.all()


def _project(request: HttpRequest) -> str:
    return getattr(request, "project", "default")


async def schedules(request: HttpRequest) -> HttpResponse:
    return await _answer(request, {"GET": _list, "POST": _make})


async def schedule(request: HttpRequest, schedule_id: str) -> HttpResponse:
    return await _answer(request, {"GET": _show, "PATCH": _change, "DELETE": _remove}, schedule_id)


async def firings(request: HttpRequest, schedule_id: str) -> HttpResponse:
    return await _answer(request, {"GET": _firings}, schedule_id)


async def act(request: HttpRequest, schedule_id: str, action: str) -> HttpResponse:
    return await _answer(request, {"POST": _act}, schedule_id, action)


async def _answer(request: HttpRequest, by_method: dict[str, Any], *args: str) -> HttpResponse:
    """Run the method's function in a thread, with the body for those that take one; refusals become answers."""
    method = "GET" if request.method == "HEAD" else request.method or ""
    if method not in by_method:
        refused = error_response(request, method_refusal(request.method or ""))
        refused["Allow"] = ", ".join(by_method)
        return refused
    try:
        body = await read_json(request) if by_method[method] in (_make, _change) else None
        return await sync_to_async(by_method[method])(request, *args, *([body] if body is not None else []))
    except Refusal as refusal:
        return error_response(request, refusal)


def _find(request: HttpRequest, schedule_id: str) -> Schedule:
    found = visible(request).filter(pk=schedule_id).first()
    if found is None:
        raise Refusal(404, "schedule_not_found", "schedule not found")
    return found


def _list(request: HttpRequest) -> HttpResponse:
    return json_response({"ok": True, "schedules": [schedule_json(row) for row in visible(request)]})


def _make(request: HttpRequest, body: dict[str, Any]) -> HttpResponse:
    by = actor_of(request)
    row = fill(Schedule(project=_project(request), created_by=by), body, new=True)
    with transaction.atomic():
        row.save(force_insert=True)
        audit.record(
            by, "schedule.create", row.id, project=row.project, after={"name": row.name, "kind": row.kind, "cron": row.cron}
        )
    return json_response({"ok": True, "schedule": schedule_json(row)}, 201)


def _show(request: HttpRequest, schedule_id: str) -> HttpResponse:
    return json_response({"ok": True, "schedule": schedule_json(_find(request, schedule_id))})


def _change(request: HttpRequest, schedule_id: str, body: dict[str, Any]) -> HttpResponse:
    row = _find(request, schedule_id)
    before = {name: getattr(row, name) for name in body if hasattr(row, name)}
    row = fill(row, body, new=False)
    with transaction.atomic():
        row.save()
        audit.record(actor_of(request), "schedule.change", row.id, project=row.project, before=before, after=body)
    return json_response({"ok": True, "schedule": schedule_json(row)})


def _remove(request: HttpRequest, schedule_id: str) -> HttpResponse:
    row = _find(request, schedule_id)
    with transaction.atomic():
        audit.record(
            actor_of(request), "schedule.delete", row.id, project=row.project, before={"name": row.name, "kind": row.kind}
        )
        row.delete()
    return json_response({"ok": True, "id": schedule_id, "deleted": True})


def _firings(request: HttpRequest, schedule_id: str) -> HttpResponse:
    row = _find(request, schedule_id)
    return json_response({"ok": True, "firings": [firing_json(firing) for firing in row.firings.all()[:SHOWN_BACK]]})


def _act(request: HttpRequest, schedule_id: str, action: str) -> HttpResponse:
    row = _find(request, schedule_id)
    by = actor_of(request)
    with transaction.atomic():
        if action == "run":
            firing = service.run_now(row, by)
            row.refresh_from_db()
            answer = {"firing": firing_json(firing), "job": firing.job}
        else:
            service.set_paused(row, action == "pause")
            answer = {}
        audit.record(by, f"schedule.{action}", row.id, project=row.project)
    return json_response({"ok": True, "schedule": schedule_json(row), **answer})
