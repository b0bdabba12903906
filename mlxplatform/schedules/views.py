"""``/api/schedules``: list, make, change, remove, pause, resume, run now, and what became of past times."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from mlxplatform.accounts import audit
from mlxplatform.http.body import read_json
from mlxplatform.http.errors import json_response
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


def _find(request: HttpRequest, schedule_id: str) -> Schedule:
    found = visible(request).filter(pk=schedule_id).first()
    if found is None:
        raise Refusal(404, "schedule_not_found", "schedule not found")
    return found


def schedule_list(request: HttpRequest) -> dict[str, Any]:
    return {"ok": True, "schedules": [schedule_json(row) for row in visible(request)]}


async def schedule_make(request: HttpRequest) -> HttpResponse:
    return await sync_to_async(_make)(request, await read_json(request))


def _make(request: HttpRequest, body: dict[str, Any]) -> HttpResponse:
    by = actor_of(request)
    row = fill(Schedule(project=_project(request), created_by=by), body, new=True)
    with transaction.atomic():
        row.save(force_insert=True)
        audit.record(
            by, "schedule.create", row.id, project=row.project, after={"name": row.name, "kind": row.kind, "cron": row.cron}
        )
    return json_response({"ok": True, "schedule": schedule_json(row)}, 201)


def schedule_detail(request: HttpRequest, schedule_id: str) -> dict[str, Any]:
    return {"ok": True, "schedule": schedule_json(_find(request, schedule_id))}


async def schedule_change(request: HttpRequest, schedule_id: str) -> dict[str, Any]:
    return await sync_to_async(_change)(request, schedule_id, await read_json(request))


def _change(request: HttpRequest, schedule_id: str, body: dict[str, Any]) -> dict[str, Any]:
    row = _find(request, schedule_id)
    before = {name: getattr(row, name) for name in body if hasattr(row, name)}
    row = fill(row, body, new=False)
    with transaction.atomic():
        row.save()
        audit.record(actor_of(request), "schedule.change", row.id, project=row.project, before=before, after=body)
    return {"ok": True, "schedule": schedule_json(row)}


def schedule_remove(request: HttpRequest, schedule_id: str) -> dict[str, Any]:
    row = _find(request, schedule_id)
    with transaction.atomic():
        audit.record(
            actor_of(request), "schedule.delete", row.id, project=row.project, before={"name": row.name, "kind": row.kind}
        )
        row.delete()
    return {"ok": True, "id": schedule_id, "deleted": True}


def firing_list(request: HttpRequest, schedule_id: str) -> dict[str, Any]:
    row = _find(request, schedule_id)
    return {"ok": True, "firings": [firing_json(firing) for firing in row.firings.all()[:SHOWN_BACK]]}


def schedule_act(request: HttpRequest, schedule_id: str, action: str) -> dict[str, Any]:
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
    return {"ok": True, "schedule": schedule_json(row), **answer}
