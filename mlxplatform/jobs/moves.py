"""The only code that changes a job's state or appends to its event log.

Every move is one transaction: check the table, check owner and fence when given, write the row, append the
event (and whatever the owner had buffered) with the next numbers. Row and log can therefore never disagree,
and a reader that has seen a terminal state finds the terminal event.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from mlxplatform.jobs import kinds, wake
from mlxplatform.jobs.models import Job, JobEvent, QueuePause
from mlxplatform.jobs.states import EVENT_OF, LIVE, MOVES, QUEUED, RUNNING, TERMINAL, ZOMBIE

#: Claims after which a job is given up even though each made some progress: a bound on endless dying.
MAX_CLAIMS = 100
#: Called with every job that ends, in the transaction that ends it. Listeners only write SQL.
end_listeners: list[Callable[[Job], None]] = []


class MoveRefused(Exception):
    """The job is not where the caller thought: another state, another owner, another fence, or gone."""

    def __init__(self, job_id: str, reason: str):
        super().__init__(f"{job_id}: {reason}")
        self.job_id = job_id
        self.reason = reason


@dataclass(frozen=True)
class NewEvent:
    """An event that has no number yet."""

    type: str
    payload: dict[str, Any] = field(default_factory=dict)
    at: dt.datetime = field(default_factory=timezone.now)


@dataclass(frozen=True)
class Holder:
    """Proof of being the worker that runs a job: its id and the number its claim was given."""

    owner: str
    fence: int


def _append(job: Job, events: Iterable[NewEvent]) -> None:
    rows = []
    for event in events:
        job.last_seq += 1
        payload = json.dumps(event.payload, cls=DjangoJSONEncoder)
        rows.append((job.id, job.last_seq, event.type, payload, connection.ops.adapt_datetimefield_value(event.at)))
    if rows:
        # By hand: through the ORM an event cost half a millisecond, most of it spent on building the statement.
        json_of = "%s::jsonb" if connection.vendor == "postgresql" else "%s"
        columns = "(job_id, seq, type, payload, at)"
        with connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO {JobEvent._meta.db_table} {columns} VALUES (%s, %s, %s, {json_of}, %s)",  # noqa: S608  no data
                rows,
            )


def _check_holder(job: Job, holder: Holder) -> None:
    if (job.owner, job.fence) != (holder.owner, holder.fence):
        raise MoveRefused(job.id, "held by somebody else")


def move(
    job_id: str,
    to: str,
    *,
    expect: Collection[str] | None = None,
    holder: Holder | None = None,
    by: str = "",
    events: Iterable[NewEvent] = (),
    said: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Job:
    """Move a job to state ``to``, or leave everything as it was.

    Args:
        expect: states it must be in; by default any from which the table allows the move.
        holder: when given, must be the job's present owner and fence.
        by: who asked (a person's name, or the part of the system), recorded in the event.
        events: appended before the move's own event, in the same transaction.
        said: more to say in the move's own event.
        fields: other columns to set.

    Raises:
        MoveRefused: it is not there any more, is elsewhere, or the holder is stale.
    """
    with transaction.atomic():
        job = Job.objects.select_for_update(of=("self",)).filter(pk=job_id).first()
        if job is None:
            raise MoveRefused(job_id, "no such job")
        if expect is not None and job.state not in expect:
            raise MoveRefused(job_id, f"it is {job.state}")
        if to not in MOVES[job.state]:
            raise MoveRefused(job_id, f"it is {job.state} and cannot become {to}")
        if holder is not None:
            _check_holder(job, holder)
        _append(job, events)
        _apply(job, to, fields)
        _append(job, [NewEvent(EVENT_OF.get(to, "state"), {**_move_payload(job, by), **(said or {})})])
        job.save()
        if to in TERMINAL:
            ended = kinds.get(job.kind).ended if job.kind in kinds.names() else ""
            if ended:
                kinds.load(ended)(job)
            for listener in end_listeners:
                listener(job)
        transaction.on_commit(lambda: wake.announce(job.id))
    return job


def _apply(job: Job, to: str, fields: dict[str, Any]) -> None:
    """What a move does to the row besides naming the state."""
    now = timezone.now()
    job.state = to
    for name, value in fields.items():
        setattr(job, name, value)
    if to == RUNNING and job.started_at is None:
        job.started_at = now
    if to not in LIVE and to != ZOMBIE:
        job.owner = ""
        job.wish = ""
    if to in TERMINAL:
        job.ended_at = now
    elif to == QUEUED:
        job.ended_at = None
        job.enqueued_at = None
    if to == "done":
        job.progress, job.error, job.error_code = 1.0, "", ""


def _move_payload(job: Job, by: str) -> dict[str, Any]:
    payload: dict[str, Any] = {"state": job.state}
    if by:
        payload["by"] = by
    if job.state == RUNNING:
        payload["attempt"] = job.attempts
    elif job.state == "done":
        payload["result"] = job.result
    elif job.state == "failed":
        payload.update(error=job.error, code=job.error_code)
    elif job.message:
        payload["message"] = job.message
    return payload


def append(job_id: str, holder: Holder, events: list[NewEvent], **fields: Any) -> None:
    """Append an owner's buffered events and mirror ``fields`` (progress, message) to the row.

    Raises:
        MoveRefused: the job is no longer this owner's.
    """
    with transaction.atomic():
        job = Job.objects.select_for_update(of=("self",)).filter(pk=job_id).first()
        if job is None:
            raise MoveRefused(job_id, "no such job")
        _check_holder(job, holder)
        if job.state not in LIVE:
            raise MoveRefused(job_id, f"it is {job.state}")
        _append(job, events)
        for name, value in fields.items():
            setattr(job, name, value)
        job.save(update_fields=["last_seq", *fields])
        transaction.on_commit(lambda: wake.announce(job_id))


def create(job: Job, *, after: Collection[Job] = ()) -> None:
    """Insert a new job with its first event. Its initial state is ``queued`` or ``waiting``."""
    with transaction.atomic():
        job.save(force_insert=True)
        if after:
            job.after.set(after)
        _append(job, [NewEvent("state", _move_payload(job, job.created_by))])
        job.save(update_fields=["last_seq"])


def claim(queue: str, owner: str) -> Job | None:
    """Take the best job this queue may start now, or None.

    The message that woke the worker only says "look": SQL decides the order (priority, then age), pauses and
    concurrency limits, so a lost, doubled or late message changes nothing.
    """
    with transaction.atomic():
        _one_claim_at_a_time(queue)
        job = claimable(queue).filter(kind__in=kinds.names()).first()
        if job is None:
            return None
        return move(
            job.id,
            RUNNING,
            expect={QUEUED},
            by=owner,
            owner=owner,
            fence=job.fence + 1,
            attempts=job.attempts + 1,
            claimed_progress=job.progress,
            heartbeat_at=timezone.now(),
            wish="",
        )


def claimable(queue: str) -> QuerySet[Job]:
    """Jobs of this queue that may start now, best first."""
    if QueuePause.objects.filter(queue=queue).exists():
        return Job.objects.none()
    # By state alone: few jobs are live at once, while a kind may have a hundred thousand rows.
    live = list(Job.objects.filter(state__in=LIVE, owner__gt="").values_list("kind", "lane"))
    running = Counter(kind for kind, _ in live)
    lanes = {lane for _, lane in live if lane}
    full = [name for name in running if name in kinds.names() and 0 < kinds.get(name).concurrency <= running[name]]
    due = Job.objects.filter(queue=queue, state=QUEUED, due_at__lte=timezone.now())
    return due.exclude(kind__in=full).exclude(lane__in=lanes).order_by("-priority", "created_at", "id")


def _one_claim_at_a_time(queue: str) -> None:
    """Concurrency limits count rows, so two claims must not count at once. SQLite's write lock does this by itself."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"mlxp-claim:{queue}"])


def check_held(job_id: str, holder: Holder) -> None:
    """Inside a transaction: make sure the job stays this holder's until the commit.

    Raises:
        MoveRefused: it is not.
    """
    job = Job.objects.select_for_update(of=("self",)).filter(pk=job_id).first()
    if job is None or job.state not in LIVE:
        raise MoveRefused(job_id, "it does not run")
    _check_holder(job, holder)
