"""``/api/requests``: the project's finished requests, newest first, with search; one in full; export; removal.

Admins may look into another project with ``project=``. What was said is shown only of a single request and in the
export.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from django.http import HttpRequest, HttpResponseBase, StreamingHttpResponse

from mlxplatform.accounts import audit
from mlxplatform.accounts.models import DEFAULT_PROJECT
from mlxplatform.api.fields import one_of
from mlxplatform.api.paging import query_number
from mlxplatform.http.views import endpoint
from mlxplatform.inference import history, request_log
from mlxplatform.inference.contract import Refusal
from mlxplatform.inference.models import FinishedRequest

#: Rows read at once for an export.
EXPORT_ROWS = 200

_dumps = msgspec.json.Encoder().encode


def project_of(request: HttpRequest) -> str:
    """The project whose history is asked for: one's own, or any for an admin."""
    own: str = getattr(request, "project", DEFAULT_PROJECT)
    asked = request.GET.get("project") or own
    identity = getattr(request, "identity", None)
    if asked != own and not (identity is not None and identity.is_admin):
        raise Refusal(403, "forbidden", "Only an admin may look into another project.", param="project")
    return asked


def _filters(request: HttpRequest) -> dict[str, str]:
    outcome = request.GET.get("outcome", "")
    if outcome:
        one_of(*request_log.Outcome.values)(outcome, "outcome")
    return {"search": request.GET.get("q", "")[:200], "outcome": outcome, "model": request.GET.get("model", "")}


async def list_requests(request: HttpRequest) -> dict[str, Any]:
    limit = query_number(request, "limit", 50, 1, 200)
    before = request.GET.get("before") or None
    rows, more = await history.off_loop(request_log.page, project_of(request), limit=limit, before=before, **_filters(request))
    return {"ok": True, "requests": [request_log.facts(row) for row in rows], "has_more": more}


async def _one(request: HttpRequest, request_id: str) -> FinishedRequest:
    rows = FinishedRequest.objects.filter(project=project_of(request), id=request_id)
    row = await history.off_loop(rows.first)
    if row is None:
        raise Refusal(404, "request_not_found", "request not found")
    return row


async def detail(request: HttpRequest, request_id: str) -> dict[str, Any]:
    return {"ok": True, "request": request_log.whole(await _one(request, request_id))}


async def remove(request: HttpRequest, request_id: str) -> dict[str, Any]:
    row = await _one(request, request_id)
    await history.off_loop(_forget, row, request.identity.actor)  # type: ignore[attr-defined]
    return {"ok": True, "id": row.id, "deleted": True}


def _forget(row: FinishedRequest, actor: str) -> None:
    request_log.forget(row.project, request_id=row.id)
    audit.record(actor, "request.delete", row.id, project=row.project)


async def export(request: HttpRequest) -> HttpResponseBase:
    """Every row that the filters leave, newest first, one JSON object a line."""
    project, filters = project_of(request), _filters(request)

    async def lines() -> AsyncGenerator[bytes, None]:
        before: str | None = None
        while True:
            rows, more = await history.off_loop(request_log.page, project, limit=EXPORT_ROWS, before=before, **filters)
            yield b"".join([_dumps(request_log.whole(row)) + b"\n" for row in await history.off_loop(_contents, rows)])
            if not more:
                return
            before = rows[-1].id

    response = StreamingHttpResponse(lines(), content_type="application/jsonl")
    response["Content-Disposition"] = 'attachment; filename="requests.jsonl"'
    return response


def _contents(rows: list[FinishedRequest]) -> list[FinishedRequest]:
    """The same rows with what was said."""
    found = FinishedRequest.objects.in_bulk([row.id for row in rows])
    return [found[row.id] for row in rows if row.id in found]


requests_view = endpoint(GET=list_requests)
request_view = endpoint(GET=detail, DELETE=remove)
export_view = endpoint(GET=export)
