"""What the rest of the platform asks of jobs: submit, cancel, retry, pause, resume.

Each call is one transaction in SQL and, after its commit, a hint to the workers. A broker that is down
changes nothing but latency: the sweeper sends the hint when it is back.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Collection
from typing import Any

import msgspec
from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from mlxplatform.broker import queues
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import kinds, moves, wake
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.states import (
    CANCELLED,
    CANCELLING,
    DONE,
    FAILED,
    PAUSED,
    QUEUED,
    RUNNING,
    TERMINAL,
    WAITING,
)


def submit(
    kind: str,
    config: dict[str, Any],
    *,
    project: str = "default",
    created_by: str = "",
    idempotency_key: str | None = None,
    priority: int = 0,
    due_at: dt.datetime | None = None,
    deadline_at: dt.datetime | None = None,
    host: str = "",
    parent: Job | None = None,
    after: Collection[str] = (),
    lane: str = "",
) -> Job:
    """Create a job, or return the one this idempotency key already made.

    ``host`` chooses the GPU host of a trainer job (default: this machine's). ``after`` names jobs that must be
    done first. Jobs of one ``lane`` run one at a time.

    Raises:
        Refusal: the key was used for different work, or a job named in ``after`` does not exist.
        kinds.UnknownKind: a bug of the caller.
    """
    policy = kinds.get(kind)
    digest = hashlib.sha256(kind.encode() + msgspec.json.encode(config, order="deterministic")).hexdigest()
    if idempotency_key is not None:
        twin = _twin(project, idempotency_key, digest)
        if twin is not None:
            return twin
    queue = queues.gpu_jobs(host or settings.ENV.host_id) if policy.queue == "gpujobs" else queues.CPU_QUEUE
    try:
        with transaction.atomic():
            earlier = list(Job.objects.filter(pk__in=after, project=project))
            if len(earlier) != len(set(after)):
                raise Refusal(400, "unknown_job", "after names a job that does not exist", param="after")
            blocked = any(other.state != DONE for other in earlier)
            job = Job(
                kind=kind,
                state=WAITING if blocked else QUEUED,
                queue=queue,
                config=config,
                priority=priority,
                max_attempts=policy.max_attempts,
                due_at=due_at or timezone.now(),
                deadline_at=deadline_at,
                idempotency_key=idempotency_key,
                digest=digest,
                project=project,
                created_by=created_by,
                parent=parent,
                lane=lane,
                message="waiting for other jobs" if blocked else "",
            )
            moves.create(job, after=earlier)
            if not blocked and job.due_at <= timezone.now():
                transaction.on_commit(lambda: wake.worker(job))
    except IntegrityError:
        twin = _twin(project, idempotency_key, digest) if idempotency_key is not None else None
        if twin is None:
            raise
        return twin
    return job


def _twin(project: str, key: str, digest: str) -> Job | None:
    twin = Job.objects.filter(project=project, idempotency_key=key).first()
    if twin is not None and twin.digest != digest:
        raise Refusal(400, "idempotency_conflict", "this idempotency key was used for a different job", param="idempotency_key")
    return twin


def cancel(job_id: str, by: str = "") -> Job:
    """Ask a job to stop. What no worker holds ends at once; a running job ends within a step. Repeating it is harmless.

    Raises:
        Refusal: 404 unknown, 400 it had already ended otherwise.
    """
    with transaction.atomic():
        job = _locked(job_id)
        if job.state in {CANCELLED, CANCELLING}:
            return job
        if job.state in TERMINAL:
            raise Refusal(400, "job_ended", f"the job is already {job.state}", param="id")
        held = job.state == RUNNING or (job.state == WAITING and bool(job.owner))
        return moves.move(job_id, CANCELLING if held else CANCELLED, by=by)


def retry(job_id: str, by: str = "") -> Job:
    """Queue a failed or cancelled job again, with a fresh count of attempts; its finished rows are kept.

    Raises:
        Refusal: 404 unknown, 400 it has not failed.
    """
    with transaction.atomic():
        job = _locked(job_id)
        if job.state not in {FAILED, CANCELLED}:
            message = f"only failed or cancelled jobs can be retried; this one is {job.state}"
            raise Refusal(400, "job_not_retryable", message, param="id")
        now = timezone.now()
        job = moves.move(
            job_id, QUEUED, by=by, attempts=0, deaths=0, error="", error_code="", due_at=now, deadline_at=None, message=""
        )
        transaction.on_commit(lambda: wake.worker(job))
    return job


def pause(job_id: str, by: str = "") -> Job:
    """Hold a job that has not begun, or ask a running one of a pausable kind to stop at its next safe point.

    Raises:
        Refusal: 404 unknown, 400 its state or kind does not allow it.
    """
    with transaction.atomic():
        job = _locked(job_id)
        if job.state == PAUSED or (job.state == RUNNING and job.wish == "pause"):
            return job
        if job.state == QUEUED or (job.state == WAITING and not job.owner):
            return moves.move(job_id, PAUSED, by=by)
        if job.state != RUNNING:
            raise Refusal(400, "job_not_pausable", f"the job is {job.state}", param="id")
        if not kinds.get(job.kind).pausable:
            raise Refusal(400, "job_not_pausable", f"{job.kind} jobs cannot be paused while they run", param="id")
        job.wish = "pause"
        job.save(update_fields=["wish"])
    return job


def resume(job_id: str, by: str = "") -> Job:
    """Queue a paused job again.

    Raises:
        Refusal: 404 unknown, 400 it is not paused.
    """
    with transaction.atomic():
        job = _locked(job_id)
        if job.state == RUNNING and job.wish == "pause":
            job.wish = ""
            job.save(update_fields=["wish"])
            return job
        if job.state != PAUSED:
            raise Refusal(400, "job_not_paused", f"the job is {job.state}, not paused", param="id")
        if job.after.exclude(state=DONE).exists():
            return moves.move(job_id, WAITING, by=by)
        job = moves.move(job_id, QUEUED, by=by, due_at=timezone.now())
        transaction.on_commit(lambda: wake.worker(job))
    return job


def settle_dependents(job: Job) -> None:
    """Start or fail the jobs that wait for ``job``, which has ended. Safe to repeat."""
    for waiter in Job.objects.filter(after=job, state=WAITING, owner=""):
        try:
            settle(waiter)
        except moves.MoveRefused:
            continue


def settle(waiter: Job) -> None:
    """Move a job that waits for others on, if what it waits for has ended."""
    states = set(waiter.after.values_list("state", flat=True))
    if states & {FAILED, CANCELLED}:
        error = "a job it depends on did not finish"
        moves.move(waiter.id, FAILED, expect={WAITING}, by="scheduler", error=error, error_code="dependency_failed")
    elif states <= {DONE}:
        job = moves.move(waiter.id, QUEUED, expect={WAITING}, by="scheduler", message="")
        transaction.on_commit(lambda: wake.worker(job))


def _locked(job_id: str) -> Job:
    job = Job.objects.select_for_update(of=("self",)).filter(pk=job_id).first()
    if job is None:
        raise Refusal(404, "job_not_found", "job not found")
    return job
