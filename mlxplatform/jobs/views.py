"""``/api/jobs``: list, one, its stream and its log, and what people may do to it."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.db.models import Count
from django.http import HttpRequest, StreamingHttpResponse

from mlxplatform.accounts.actors import PERSON
from mlxplatform.http.body import read_json
from mlxplatform.http.sse import EventStreamResponse
from mlxplatform.http.views import endpoint
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import acting, export, queries, streams
from mlxplatform.jobs.models import Job, QueuePause, Worker
from mlxplatform.jobs.outlook import outlook
from mlxplatform.jobs.states import TERMINAL
from mlxplatform.jobs.wire import job_json

#: Most jobs one bulk request may change.
BULK_LIMIT = 10_000


def actor_of(request: HttpRequest) -> str:
    """Who asks, as the audit log names them."""
    identity = getattr(request, "identity", None)
    return identity.actor if identity is not None else "local"


def list_jobs(request: HttpRequest) -> dict[str, Any]:
    page = queries.page(queries.visible(request), request.GET.dict())
    return {
        "ok": True,
        "jobs": [job_json(job) for job in page.jobs],
        "has_more": page.has_more,
        "next": page.jobs[-1].id if page.has_more else None,
    }


def show_job(request: HttpRequest, job_id: str) -> dict[str, Any]:
    job, _ = _find(request, job_id)
    return {"ok": True, "job": {**job_json(job), **outlook(job)}}


async def stream_job(request: HttpRequest, job_id: str) -> EventStreamResponse:
    job, first_seq = await sync_to_async(_find)(request, job_id)
    asked = request.headers.get("Last-Event-ID") or request.GET.get("after")
    after = streams.position(asked, job.last_seq, first_seq)
    # Pages come back by themselves (EventSource); a program's stream is not cut while its process may stay.
    returns = actor_of(request).startswith(PERSON)
    return EventStreamResponse(streams.job_frames(job_json(job), after, returns=returns))


async def download_events(request: HttpRequest, job_id: str) -> StreamingHttpResponse:
    job, _ = await sync_to_async(_find)(request, job_id)
    return StreamingHttpResponse(
        streams.ndjson(job.id, job.last_seq),
        content_type="application/x-ndjson; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{job.id}.ndjson"'},
    )


async def export_jobs(request: HttpRequest) -> StreamingHttpResponse:
    params = request.GET.dict()
    queries.filtered(Job.objects.none(), params)  # a bad filter is refused before the first byte
    return StreamingHttpResponse(
        export.rows(
            queries.visible(request), {name: params[name] for name in ("kind", "state", "status", "parent") if name in params}
        ),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": 'attachment; filename="jobs.csv"'},
    )


def act_on_job(request: HttpRequest, job_id: str, action: str) -> dict[str, Any]:
    job, _ = _find(request, job_id)
    return {"ok": True, "job": job_json(acting.act(job, action, actor_of(request)))}


async def act_on_jobs(request: HttpRequest, action: str) -> dict[str, Any]:
    # Null means absent: a filter that a client failed to fill in must not become "all jobs".
    body = {name: value for name, value in (await read_json(request)).items() if value is not None}
    allowed = {"ids", "kind", "state"}
    for name, value in body.items():
        if name not in allowed:
            raise Refusal(400, "unknown_field", f"the fields are {', '.join(sorted(allowed))}", param=name)
        if name != "ids" and (not isinstance(value, str) or "\0" in value):
            raise Refusal(400, "invalid_value", f"{name} must be a text", param=name)
        if name != "ids" and not value.strip(" ,"):
            raise Refusal(400, "invalid_value", f"{name} must not be empty", param=name)
    ids = body.get("ids")
    if ids is not None and not (isinstance(ids, list) and all(isinstance(one, str) and "\0" not in one for one in ids)):
        raise Refusal(400, "invalid_value", "ids must be a list of job ids", param="ids")
    if ids is not None and len(ids) > BULK_LIMIT:
        raise Refusal(400, "invalid_value", f"ids may name at most {BULK_LIMIT} jobs", param="ids")
    if not body:
        raise Refusal(400, "missing_required_parameter", "name the jobs: ids, or kind and state", param="ids")
    changed, refused = await sync_to_async(_act_on_many)(request, action, body)
    return {"ok": True, "changed": changed, "refused": refused}


def _find(request: HttpRequest, job_id: str) -> tuple[Job, int]:
    """The job and the number of its oldest kept event."""
    job = queries.visible(request).filter(pk=job_id).first()
    if job is None:
        raise Refusal(404, "job_not_found", "job not found")
    first = job.events.order_by("seq").values_list("seq", flat=True).first()
    return job, first or job.last_seq + 1


def _act_on_many(request: HttpRequest, action: str, body: dict[str, Any]) -> tuple[list[str], list[dict[str, str]]]:
    jobs = queries.filtered(queries.visible(request), {key: value for key, value in body.items() if key != "ids"})
    if body.get("ids") is not None:
        jobs = jobs.filter(pk__in=body["ids"])
    changed, refused = [], []
    for job in jobs.order_by("created_at", "id")[:BULK_LIMIT]:
        try:
            changed.append(acting.act(job, action, actor_of(request)).id)
        except Refusal as refusal:
            refused.append({"id": job.id, "error": refusal.message})
    return changed, refused


def list_queues(request: HttpRequest) -> dict[str, Any]:
    """Every queue that has jobs or workers: how many wait and run, who works, whether it is paused."""
    paused = set(QueuePause.objects.values_list("queue", flat=True))
    counts: dict[str, dict[str, int]] = {}
    for queue, state, number in (
        Job.objects.exclude(state__in=TERMINAL).order_by().values_list("queue", "state").annotate(n=Count("id"))
    ):
        counts.setdefault(queue, {})[state] = number
    workers: dict[str, int] = {}
    for queue in Worker.objects.values_list("queue", flat=True):
        workers[queue] = workers.get(queue, 0) + 1
    queues = [
        {"name": name, "paused": name in paused, "workers": workers.get(name, 0), "jobs": counts.get(name, {})}
        for name in sorted({*paused, *counts, *workers})
    ]
    return {"ok": True, "queues": queues}


def act_on_queue(request: HttpRequest, queue: str, action: str) -> dict[str, Any]:
    """Hold a queue (what runs goes on) or let it go on. It concerns every project: the door asks for the scope 'operate'."""
    if action == "pause":
        acting.hold(queue, actor_of(request))
    else:
        acting.let_go_on(queue, actor_of(request))
    return {"ok": True, "queue": {"name": queue, "paused": action == "pause"}}


job_list = endpoint(GET=list_jobs)
job_export = endpoint(GET=export_jobs)
job_detail = endpoint(GET=show_job)
job_stream = endpoint(GET=stream_job)
job_events = endpoint(GET=download_events)
job_action = endpoint(POST=act_on_job)
job_bulk = endpoint(POST=act_on_jobs)
queue_list = endpoint(GET=list_queues)
queue_action = endpoint(POST=act_on_queue)
