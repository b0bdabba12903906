"""``/api/data``: what is stored of the caller's project, or of one key's or person's work in it, and deleting it;
``/api/retention``: how long things are kept."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest

from mlxplatform.accounts import audit
from mlxplatform.accounts.actors import is_named
from mlxplatform.http.body import read_json
from mlxplatform.http.views import endpoint
from mlxplatform.inference.contract import Refusal
from mlxplatform.operations import erasure
from mlxplatform.retention import policy


def _maker(request: HttpRequest, asked: Any) -> str:
    """Whose work is meant: one's own, or for administrators anybody's.

    Raises:
        Refusal: no such name, or somebody else's.
    """
    own: str = request.identity.actor  # type: ignore[attr-defined]
    if asked == "me":
        return own
    if not isinstance(asked, str) or not is_named(asked):
        raise Refusal(400, "invalid_value", "made_by must be me, key:<id> or user:<name>.", param="made_by")
    if asked != own and not request.identity.is_admin:  # type: ignore[attr-defined]
        raise Refusal(403, "forbidden", "Only an administrator may name somebody else.", param="made_by")
    return asked


def show(request: HttpRequest) -> dict[str, Any]:
    project = request.project  # type: ignore[attr-defined]
    maker = _maker(request, request.GET["made_by"]) if request.GET.get("made_by") else ""
    shown: dict[str, Any] = {"ok": True, "project": project, **({"made_by": maker} if maker else {})}
    return {**shown, "holdings": erasure.holdings(project, maker)}


async def erase(request: HttpRequest) -> dict[str, Any]:
    """The project's name must be sent; with ``made_by`` only that key's or person's work in it goes."""
    body = await read_json(request)
    for name in body:
        if name not in {"project", "made_by"}:
            raise Refusal(400, "unknown_field", "the fields are project, made_by", param=name[:60])
    project = request.project  # type: ignore[attr-defined]
    if body.get("project") != project:
        raise Refusal(400, "confirmation_required", f'Send {{"project": "{project}"}} to delete its data.', param="project")
    maker = _maker(request, body["made_by"]) if body.get("made_by") is not None else ""
    actor = request.identity.actor  # type: ignore[attr-defined]
    deleted = await sync_to_async(erasure.erase)(project, actor=actor, maker=maker)
    return {"ok": True, "project": project, **({"made_by": maker} if maker else {}), "deleted": deleted}


def show_retention(request: HttpRequest) -> dict[str, Any]:
    return {"ok": True, "retention": policy.described()}


async def change_retention(request: HttpRequest) -> dict[str, Any]:
    """Null takes the environment's value again."""
    body = await read_json(request)
    return await sync_to_async(_change_retention)(request, body)


def _change_retention(request: HttpRequest, body: dict[str, Any]) -> dict[str, Any]:
    before, after = policy.change(body)
    actor = request.identity.actor  # type: ignore[attr-defined]
    audit.record(actor, "retention.change", "platform", before=before, after=after)
    return show_retention(request)


data_view = endpoint(GET=show, DELETE=erase)
retention_view = endpoint(GET=show_retention, PATCH=change_retention)
