"""The hub over HTTP: a project's token (set, described, forgotten, never shown) and pushing a version."""

from __future__ import annotations

import re
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest

from mlxplatform.datasets import hub, pushing, queries
from mlxplatform.datasets.inputs import bad
from mlxplatform.datasets.models import HubToken
from mlxplatform.datasets.views import actor_of, idempotency_key, project_of
from mlxplatform.http.body import read_json
from mlxplatform.inference.contract import Refusal

_TOKEN = re.compile(r"[!-~]{8,512}")


async def token(request: HttpRequest) -> dict[str, Any]:
    return await sync_to_async(_described)(project_of(request))


def _described(project: str) -> dict[str, Any]:
    kept = HubToken.objects.filter(project=project).first()
    about = {"ends_with": kept.ends_with, "set_by": kept.set_by, "set_at": kept.set_at.isoformat()} if kept else None
    return {"ok": True, "token": about}


async def set_token(request: HttpRequest) -> dict[str, Any]:
    body = await read_json(request)
    for name in body:
        if name != "token":
            raise Refusal(400, "unknown_field", f"{name[:60]} is not a field; the field is token", param=name[:60])
    await sync_to_async(hub.keep_token)(project_of(request), checked_token(body.get("token")), actor_of(request))
    return await sync_to_async(_described)(project_of(request))


def checked_token(given: Any) -> str:
    """Raises Refusal."""
    if not isinstance(given, str) or not _TOKEN.fullmatch(given):
        raise bad("token", "token must be the hub's token: 8 to 512 visible characters without spaces")
    return given


async def forget_token(request: HttpRequest) -> dict[str, Any]:
    await sync_to_async(hub.forget_token)(project_of(request), actor_of(request))
    return {"ok": True, "token": None}


async def push(request: HttpRequest, dataset_id: str) -> dict[str, Any]:
    body = await read_json(request)
    return await sync_to_async(_push)(request, dataset_id, body)


def _push(request: HttpRequest, dataset_id: str, body: dict[str, Any]) -> dict[str, Any]:
    wanted = body.get("version")
    if wanted is not None and (isinstance(wanted, bool) or not isinstance(wanted, int)):
        raise bad("version", "version must be a whole number")
    params = {"version": str(wanted)} if wanted is not None else {}
    version = queries.version_of(queries.find(request, dataset_id), params)
    key = idempotency_key(request, body)
    job = pushing.submit(version, body, project=project_of(request), created_by=actor_of(request), idempotency_key=key)
    return {"ok": True, "job_id": job.id, "version": version.number, "stream": f"/api/jobs/{job.id}/stream"}
