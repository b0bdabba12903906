"""``/api/data``: what the caller's project has stored here, and deleting all of it."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest

from mlxplatform.http.body import read_json
from mlxplatform.http.views import endpoint
from mlxplatform.inference.contract import Refusal
from mlxplatform.operations import erasure


def show(request: HttpRequest) -> dict[str, Any]:
    project = request.project  # type: ignore[attr-defined]
    return {"ok": True, "project": project, "holdings": erasure.holdings(project)}


async def erase(request: HttpRequest) -> dict[str, Any]:
    body = await read_json(request)
    project = request.project  # type: ignore[attr-defined]
    if body.get("project") != project:
        raise Refusal(400, "confirmation_required", f'Send {{"project": "{project}"}} to delete all its data.', param="project")
    actor = request.identity.actor  # type: ignore[attr-defined]
    return {"ok": True, "project": project, "deleted": await sync_to_async(erasure.erase)(project, actor=actor)}


data_view = endpoint(GET=show, DELETE=erase)
