"""``/api/library/…``, ``/api/hub/…``: presets, the default model, and adopting what other programs keep."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest

from mlxplatform.accounts import audit
from mlxplatform.http.body import read_json
from mlxplatform.library import adoption, choices
from mlxplatform.library.models import ModelChoice
from mlxplatform.library.presets import FIELDS
from mlxplatform.library.views import actor_of, project_of


def fields(request: HttpRequest) -> dict[str, Any]:
    """What a preset can hold, with types and limits."""
    return {"ok": True, "fields": [field.describe() for field in FIELDS]}


def preset(request: HttpRequest, model_id: str) -> dict[str, Any]:
    choices.known(model_id)
    return _shown(choices.of(model_id))


async def put_preset(request: HttpRequest, model_id: str) -> dict[str, Any]:
    """Replace the preset by the body; fields that are absent or null are left to the model."""
    body = await read_json(request)
    return await sync_to_async(_changed)(request, model_id, "preset", lambda: choices.set_preset(model_id, body))


def delete_preset(request: HttpRequest, model_id: str) -> dict[str, Any]:
    return _changed(request, model_id, "preset", lambda: choices.set_preset(model_id, {}))


def make_default(request: HttpRequest, model_id: str) -> dict[str, Any]:
    """From now on this model answers requests of its kind that name none."""
    return _changed(request, model_id, "default", lambda: choices.set_default(model_id))


def clear_default(request: HttpRequest, model_id: str) -> dict[str, Any]:
    choices.known(model_id)
    return _changed(request, model_id, "default", lambda: choices.clear_default(model_id))


def _changed(request: HttpRequest, model_id: str, what: str, change: Any) -> dict[str, Any]:
    before = _shown(choices.of(model_id))
    shown = _shown(change())
    audit.record(actor_of(request), f"model.{what}", model_id, project=project_of(request), before=before, after=shown)
    return shown


def _shown(row: ModelChoice) -> dict[str, Any]:
    return {"ok": True, "model": row.model, "preset": row.preset, "pinned": row.pinned, "default_for": row.default_for or None}


def foreign(request: HttpRequest) -> dict[str, Any]:
    return {"ok": True, "models": [item.describe() for item in adoption.found()]}


async def adopt(request: HttpRequest) -> dict[str, Any]:
    """Import one of the listed models: ``{source, name, model?}``."""
    body = await read_json(request)

    def make() -> dict[str, Any]:
        job = adoption.submit(
            body.get("source"), body.get("name"), body.get("model"), project=project_of(request), created_by=actor_of(request)
        )
        audit.record(actor_of(request), "model.adopt", job.id, project=project_of(request), after=job.config)
        return {"ok": True, "job_id": job.id, "model": job.config["model"], "url": f"/api/jobs/{job.id}"}

    return await sync_to_async(make)()
