"""``/v1/fine_tuning/jobs*``, for the unmodified SDK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.db.models import Q
from django.http import HttpRequest

from mlxplatform.accounts import audit
from mlxplatform.http.body import read_json
from mlxplatform.http.fields import invalid
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import service
from mlxplatform.jobs.models import Job, JobEvent
from mlxplatform.jobs.states import DONE
from mlxplatform.training import finetuning, registry
from mlxplatform.training.curves import curve_of
from mlxplatform.training.models import Adapter, TrainingRun
from mlxplatform.training.openai import parse, render
from mlxplatform.training.views import actor_of, earlier_job, idempotency_key, project_of

DEFAULT_LIMIT, DEFAULT_CHECKPOINTS, MAX_LIMIT = 20, 10, 100
_ACTIONS: dict[str, Callable[[str, str], Job]] = {"cancel": service.cancel, "pause": service.pause, "resume": service.resume}


async def create(request: HttpRequest) -> dict[str, Any]:
    body = await read_json(request)
    return await sync_to_async(_create)(request, body)


def _create(request: HttpRequest, body: dict[str, Any]) -> dict[str, Any]:
    key = idempotency_key(request, {})
    job = earlier_job(request, finetuning.KIND, key)
    if job is None:
        order, surface = parse.order(body, _project(request))
        with parse.said_in_openais_words(surface["model"]):
            job = finetuning.submit(
                order, project=project_of(request), created_by=actor_of(request), idempotency_key=key, surface=surface
            )
        audit.record(actor_of(request), "finetune.submit", job.id, project=project_of(request), after={"model": order["model"]})
    return _object(job)


def jobs(request: HttpRequest) -> dict[str, Any]:
    found = _jobs(request).order_by("-created_at", "-id")
    limit = _limit(request, DEFAULT_LIMIT)
    after = request.GET.get("after", "")
    if after:
        cursor = _find(request, after, param="after")
        found = found.filter(Q(created_at__lt=cursor.created_at) | Q(created_at=cursor.created_at, id__lt=cursor.id))
    wanted = {name[len("metadata[") : -1]: value for name, value in request.GET.items() if name.startswith("metadata[")}
    if request.GET.get("metadata", "null") != "null":
        raise invalid("metadata", "metadata must be null for jobs without any, or metadata[key]=value for each pair to look for.")
    if wanted or "metadata" in request.GET:
        runs = TrainingRun.objects.filter(job__in=found.values("id"))
        if wanted:
            # Compared here: a client's key in a lookup's name would be read as an operator of the database.
            kept = [(run, (surface or {}).get("metadata") or {}) for run, surface in runs.values_list("job", "surface")]
            found = found.filter(id__in=[run for run, pairs in kept if wanted.items() <= pairs.items()])
        else:
            runs = runs.filter(Q(surface__metadata=None) | ~Q(surface__has_key="metadata"))
            found = found.filter(id__in=runs.values("job"))
    page = list(found[: limit + 1])
    return {"object": "list", "data": [_object(job) for job in page[:limit]], "has_more": len(page) > limit}


def retrieve(request: HttpRequest, job_id: str) -> dict[str, Any]:
    return _object(_find(request, job_id))


def act(request: HttpRequest, job_id: str, action: str) -> dict[str, Any]:
    job = _find(request, job_id)
    try:
        changed = _ACTIONS[action](job.id, actor_of(request))
    except Refusal as refusal:
        if refusal.param != "id":
            raise
        job.refresh_from_db()
        message = f"The job cannot be asked to {action}: its status is {render.status(job)}."
        raise Refusal(refusal.status, refusal.code, message, param="fine_tuning_job_id") from None
    audit.record(
        actor_of(request),
        f"job.{action}",
        job.id,
        project=job.project,
        before={"state": job.state},
        after={"state": changed.state},
    )
    return _object(changed)


def events(request: HttpRequest, job_id: str) -> dict[str, Any]:
    """Newest first."""
    job = _find(request, job_id)
    limit = _limit(request, DEFAULT_LIMIT)
    found = JobEvent.objects.filter(job=job).order_by("-seq")
    after = request.GET.get("after", "")
    if after:
        owner, _, seq = after.rpartition("-")
        if owner != render.event_prefix(job.id) or not seq.isdecimal() or len(seq) > 18:
            raise invalid("after", "after must be the id of an event of this job.")
        found = found.filter(seq__lt=int(seq))
    shown: list[dict[str, Any]] = []
    for event in found.iterator(chunk_size=200):
        rendered = render.event_object(event)
        if rendered is not None:
            shown.append(rendered)
        if len(shown) > limit:
            break
    return {"object": "list", "data": shown[:limit], "has_more": len(shown) > limit}


def checkpoints(request: HttpRequest, job_id: str) -> dict[str, Any]:
    """Newest first; what was deleted is not listed."""
    job = _find(request, job_id)
    limit = _limit(request, DEFAULT_CHECKPOINTS)
    made = finetuning.published(job)
    shown: list[dict[str, Any]] = []
    if made and job.state == DONE:
        steps = render.checkpoint_steps(made, registry.checkpoints(made))
        curve = curve_of(job)
        shown = [render.checkpoint_object(job, made, step, name, curve) for step, name in steps]
    if after := request.GET.get("after", ""):
        place = next((index for index, one in enumerate(shown) if one["id"] == after), None)
        if place is None:
            raise invalid("after", "after must be the id of a checkpoint of this job.")
        shown = shown[place + 1 :]
    data = shown[:limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(shown) > limit,
    }


def _object(job: Job) -> dict[str, Any]:
    made = Adapter.objects.filter(job=job.id).first()
    return render.job_object(job, TrainingRun.objects.filter(pk=job.id).first(), made)


def _project(request: HttpRequest) -> str | None:
    identity = getattr(request, "identity", None)
    return project_of(request) if identity is not None and not identity.is_admin else None


def _jobs(request: HttpRequest) -> Any:
    found = Job.objects.filter(kind=finetuning.KIND)
    project = _project(request)
    return found if project is None else found.filter(project=project)


def _find(request: HttpRequest, public: str, param: str | None = None) -> Job:
    job = _jobs(request).filter(pk=render.private_id(public)).first() if public.startswith("ftjob-") else None
    if job is None:
        raise Refusal(404, "fine_tune_not_found", f"Could not find fine tune: {public[:80]}", param=param or "fine_tuning_job_id")
    return job


def _limit(request: HttpRequest, default: int) -> int:
    raw = request.GET.get("limit", "")
    if not raw:
        return default
    if not raw.isdecimal() or len(raw) > 6 or not 1 <= int(raw) <= MAX_LIMIT:
        raise invalid("limit", f"limit must be a whole number from 1 to {MAX_LIMIT}.")
    return int(raw)
