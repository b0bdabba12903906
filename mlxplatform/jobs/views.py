"""``/api/jobs``: list, one, its stream and its log, and what people may do to it."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse

from mlxplatform.accounts import audit
from mlxplatform.http.body import read_json
from mlxplatform.http.errors import error_response, json_response, method_refusal
from mlxplatform.http.sse import EventStreamResponse
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import queries, service, streams
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.wire import job_json

AsyncView = Callable[..., Awaitable[HttpResponseBase]]

#: What a person may do to a job, by the last part of the path.
ACTIONS: dict[str, Callable[[str, str], Job]] = {
    "cancel": service.cancel,
    "retry": service.retry,
    "pause": service.pause,
    "resume": service.resume,
}
#: Most jobs one bulk request may change.
BULK_LIMIT = 10_000


def endpoint(method: str) -> Callable[[AsyncView], AsyncView]:
    """A view for one method, whose refusals become answers."""

    def decorate(view: AsyncView) -> AsyncView:
        @functools.wraps(view)
        async def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            allowed = {method, "HEAD"} if method == "GET" else {method}
            if request.method not in allowed:
                refused = error_response(request, method_refusal(request.method or ""))
                refused["Allow"] = ", ".join(sorted(allowed))
                return refused
            try:
                return await view(request, *args, **kwargs)
            except Refusal as refusal:
                return error_response(request, refusal)

        return answer

    return decorate


def actor_of(request: HttpRequest) -> str:
    """Who asks, as the audit log names them."""
    identity = getattr(request, "identity", None)
    return identity.actor if identity is not None else "local"


@endpoint("GET")
async def job_list(request: HttpRequest) -> HttpResponse:
    return await sync_to_async(_list)(request)


def _list(request: HttpRequest) -> HttpResponse:
    page = queries.page(queries.visible(request), request.GET.dict())
    return json_response(
        {
            "ok": True,
            "jobs": [job_json(job) for job in page.jobs],
            "has_more": page.has_more,
            "next": page.jobs[-1].id if page.has_more else None,
        }
    )


@endpoint("GET")
async def job_detail(request: HttpRequest, job_id: str) -> HttpResponse:
    job, _ = await sync_to_async(_find)(request, job_id)
    return json_response({"ok": True, "job": job_json(job)})


@endpoint("GET")
async def job_stream(request: HttpRequest, job_id: str) -> HttpResponseBase:
    job, first_seq = await sync_to_async(_find)(request, job_id)
    asked = request.headers.get("Last-Event-ID") or request.GET.get("after")
    after = streams.position(asked, job.last_seq, first_seq)
    return EventStreamResponse(streams.job_frames(job_json(job), after))


@endpoint("GET")
async def job_events(request: HttpRequest, job_id: str) -> HttpResponseBase:
    job, _ = await sync_to_async(_find)(request, job_id)
    return StreamingHttpResponse(
        streams.ndjson(job.id, job.last_seq),
        content_type="application/x-ndjson; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{job.id}.ndjson"'},
    )


@endpoint("POST")
async def job_action(request: HttpRequest, job_id: str, action: str) -> HttpResponse:
    job = await sync_to_async(_act)(request, job_id, action)
    return json_response({"ok": True, "job": job_json(job)})


@endpoint("POST")
async def job_bulk(request: HttpRequest, action: str) -> HttpResponse:
    body = await read_json(request)
    allowed = {"ids", "kind", "state"}
    for name, value in body.items():
        if name not in allowed:
            raise Refusal(400, "unknown_field", f"the fields are {', '.join(sorted(allowed))}", param=name)
        if name != "ids" and not isinstance(value, str):
            raise Refusal(400, "invalid_value", f"{name} must be a text", param=name)
    ids = body.get("ids")
    if ids is not None and not (isinstance(ids, list) and all(isinstance(one, str) for one in ids)):
        raise Refusal(400, "invalid_value", "ids must be a list of job ids", param="ids")
    if not body:
        raise Refusal(400, "missing_required_parameter", "name the jobs: ids, or kind and state", param="ids")
    changed, refused = await sync_to_async(_act_on_many)(request, action, body)
    return json_response({"ok": True, "changed": changed, "refused": refused})


def _find(request: HttpRequest, job_id: str) -> tuple[Job, int]:
    """The job and the number of its oldest kept event."""
    job = queries.visible(request).filter(pk=job_id).first()
    if job is None:
        raise Refusal(404, "job_not_found", "job not found")
    first = job.events.order_by("seq").values_list("seq", flat=True).first()
    return job, first or job.last_seq + 1


def _act(request: HttpRequest, job_id: str, action: str) -> Job:
    job, _ = _find(request, job_id)
    return act(job, action, actor_of(request))


def act(job: Job, action: str, by: str) -> Job:
    """Carry out a person's action and record it, in one transaction."""
    with transaction.atomic():
        changed = ACTIONS[action](job.id, by)
        audit.record(
            by,
            f"job.{action}",
            job.id,
            project=job.project,
            before={"state": job.state, "wish": job.wish},
            after={"state": changed.state, "wish": changed.wish},
        )
    return changed


def _act_on_many(request: HttpRequest, action: str, body: dict[str, Any]) -> tuple[list[str], list[dict[str, str]]]:
    jobs = queries.filtered(queries.visible(request), {key: value for key, value in body.items() if key != "ids"})
    if body.get("ids") is not None:
        jobs = jobs.filter(pk__in=body["ids"])
    changed, refused = [], []
    for job in jobs.order_by("created_at", "id")[:BULK_LIMIT]:
        try:
            changed.append(act(job, action, actor_of(request)).id)
        except Refusal as refusal:
            refused.append({"id": job.id, "error": refusal.message})
    return changed, refused
