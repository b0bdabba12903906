"""A chunk's life in SQL: admit, claim, commit, give back, cancel, requeue.

Every function is one short transaction and every change by an owner is guarded by the chunk's fence, so that
a process which lost its chunk (killed, stopped, restarted) cannot write into it any more. Sends nothing to
Redis; callers do that after the commit, and the sweeper does it for those who died in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from mlxplatform.inference.contract import decode_request, encode
from mlxplatform.rows.contract import Output, RowError, RowRequest, RowResult, decode_output, encode_output, fingerprint
from mlxplatform.rows.models import RowCall, RowChunk

#: Owners that may die on a chunk without finishing one call before it is taken apart, and then blamed.
DEATHS_BEFORE_SPLIT = 2
DEATHS_BEFORE_POISON = 3

LIVE = (RowChunk.State.QUEUED, RowChunk.State.RUNNING)


@dataclass(frozen=True)
class Sending:
    """A chunk message to be put on its host's queue."""

    chunk: str
    host: str
    fence: int


@dataclass(frozen=True)
class OpenCall:
    """An unfinished call as the gpu side sees it."""

    id: int
    key: str
    attempts: int
    request: bytes


@dataclass(frozen=True)
class Outcome:
    """What the gpu side commits for one call."""

    call: int
    output: Output | None = None
    error: RowError | None = None


@dataclass(frozen=True)
class Admission:
    """What became of a wave of calls: finished ones, ids of those to wait for, and chunks to send."""

    finished: list[RowResult]
    waiting: dict[int, str]
    sendings: list[Sending]


def result_of(call: RowCall, *, reused: bool = False) -> RowResult:
    return _result(call.key, call.ordinal, call.state, call.output, call.error, reused=reused)


def _result(
    key: str,
    ordinal: int,
    state: str,
    output: bytes | memoryview | None,
    error: Mapping[str, Any] | None,
    *,
    reused: bool = False,
) -> RowResult:
    if state == RowCall.State.DONE and output is not None:
        return RowResult(key, ordinal, output=decode_output(bytes(output)), reused=reused)
    error = error or {"code": "internal_error", "message": "The call ended without an answer."}
    return RowResult(key, ordinal, error=RowError(**error), reused=reused)


def admit(job: str, host: str, wave: Sequence[RowRequest], *, ancestors: Sequence[str] = (), chunk_size: int) -> Admission:
    """Record a wave of calls, answer those already finished, and form chunks of the others.

    A call known under its key with the same request keeps its result; with another request it is run anew.
    Finished calls of ``ancestors`` (earlier jobs this one resumes) count when key and request are the same.
    """
    prints = {row.key: fingerprint(row.request) for row in wave}
    finished: list[RowResult] = []
    waiting: dict[int, str] = {}
    to_send: list[RowCall] = []
    with transaction.atomic():
        known = {c.key: c for c in RowCall.objects.select_for_update().filter(job=job, key__in=list(prints))}
        chunk_ids = {call.chunk_id for call in known.values() if call.chunk_id}
        live = set(RowChunk.objects.filter(id__in=chunk_ids, state__in=LIVE).values_list("id", flat=True))
        inherited: dict[str, RowCall] = {}
        missing = [key for key in prints if key not in known]
        if ancestors and missing:
            for old in RowCall.objects.filter(job__in=list(ancestors), key__in=missing, state=RowCall.State.DONE).order_by("id"):
                if old.fingerprint == prints[old.key]:
                    inherited[old.key] = old
        fresh: list[RowCall] = []
        for row in wave:
            call = known.get(row.key)
            if call is None:
                call = RowCall(job=job, key=row.key, ordinal=row.ordinal)
                call.fingerprint, call.request = prints[row.key], encode(row.request)
                old_call = inherited.get(row.key)
                if old_call is not None:
                    call.state, call.output, call.ended_at = RowCall.State.DONE, old_call.output, old_call.ended_at
                fresh.append(call)
                known[row.key] = call
            elif call.fingerprint != prints[row.key]:
                call.fingerprint, call.request = prints[row.key], encode(row.request)
                call.state, call.output, call.error, call.chunk_id, call.attempts = RowCall.State.PENDING, None, None, None, 0
                call.save()
            if call.state != RowCall.State.PENDING:
                finished.append(result_of(call, reused=True))
            elif call.chunk_id not in live:
                to_send.append(call)
            else:
                waiting[call.pk] = row.key
        sendings = []
        for start in range(0, len(to_send), chunk_size):
            members = to_send[start : start + chunk_size]
            chunk = _make_chunk(job, host, members)
            sendings.append(Sending(chunk.id, host, chunk.fence))
        _insert(fresh)
        waiting.update({call.pk: call.key for call in to_send})
    return Admission(finished, waiting, sendings)


def _make_chunk(job: str, host: str, members: Sequence[RowCall], *, deaths: int = 0) -> RowChunk:
    now = timezone.now()
    chunk = RowChunk.objects.create(job=job, host=host, size=len(members), due_at=now, sent_at=now, deaths=deaths)
    stored = [call.pk for call in members if call.pk is not None]
    if stored:
        RowCall.objects.filter(pk__in=stored, state=RowCall.State.PENDING).update(chunk=chunk)
    for call in members:
        call.chunk_id = chunk.id
    return chunk


#: Columns of a call that is new; the others begin empty. By hand for the same reason as :data:`_ANSWERED`.
_FRESH = ("job", "key", "ordinal", "fingerprint", "request", "state", "chunk_id", "output")
_ZERO = ("attempts", "prompt_tokens", "completion_tokens", "cached_tokens")
#: Rows of one statement: far below the number of parameters a database takes.
_INSERT_ROWS = 64


def _insert(calls: Sequence[RowCall]) -> None:
    """Store new calls inside the caller's transaction and give them their ids."""
    quote, adapt = connection.ops.quote_name, connection.ops.adapt_datetimefield_value
    names = ", ".join(map(quote, (*_FRESH, "ended_at", "created_at", *_ZERO)))
    one = f"({', '.join(['%s'] * (len(_FRESH) + 2) + ['0'] * len(_ZERO))})"
    created_at = adapt(timezone.now())
    for start in range(0, len(calls), _INSERT_ROWS):
        part = calls[start : start + _INSERT_ROWS]
        values: list[Any] = []
        for call in part:
            values += [getattr(call, name) for name in _FRESH]
            values += [adapt(call.ended_at) if call.ended_at else None, created_at]
        statement = (
            f"INSERT INTO {quote(RowCall._meta.db_table)} ({names}) VALUES {', '.join([one] * len(part))} RETURNING id, key"  # noqa: S608  our own names
        )
        with connection.cursor() as cursor:
            cursor.execute(statement, values)
            ids = {key: pk for pk, key in cursor.fetchall()}
        for call in part:
            call.pk = ids[call.key]


def finished_among(ids: Iterable[int]) -> list[tuple[int, RowResult]]:
    found = RowCall.objects.filter(pk__in=list(ids)).exclude(state=RowCall.State.PENDING)
    return [
        (pk, _result(key, ordinal, state, output, error))
        for pk, key, ordinal, state, output, error in found.values_list("pk", "key", "ordinal", "state", "output", "error")
    ]


def claim(chunk_id: str, fence: int, owner: str) -> list[OpenCall] | None:
    """Take a queued chunk. None when this message is stale or somebody else has it."""
    now = timezone.now()
    with transaction.atomic():
        taken = RowChunk.objects.filter(id=chunk_id, fence=fence, state=RowChunk.State.QUEUED).update(
            state=RowChunk.State.RUNNING, owner=owner, heartbeat_at=now
        )
        if not taken:
            return None
        calls = [
            OpenCall(pk, key, attempts, bytes(request))
            for pk, key, attempts, request in RowCall.objects.filter(chunk=chunk_id, state=RowCall.State.PENDING)
            .order_by("ordinal", "id")
            .values_list("pk", "key", "attempts", "request")
        ]
        RowChunk.objects.filter(id=chunk_id).update(open_at_claim=len(calls))
        RowCall.objects.filter(pk__in=[c.id for c in calls]).update(attempts=F("attempts") + 1)
    return calls


def commit(chunk_id: str, fence: int, outcomes: Sequence[Outcome], *, done: bool) -> bool:
    """Write outcomes and a heartbeat under the fence. False: the chunk is no longer ours; nothing was written."""
    now = timezone.now()
    with transaction.atomic():
        changes: dict[str, object] = {"heartbeat_at": now}
        if outcomes:
            changes["deaths"] = 0
        if done:
            changes |= {"state": RowChunk.State.DONE, "ended_at": now}
        if not RowChunk.objects.filter(id=chunk_id, fence=fence, state=RowChunk.State.RUNNING).update(**changes):
            return False
        _write(chunk_id, outcomes, now)
    return True


#: Written by hand and sent as one statement with many rows: through the ORM each outcome cost half a millisecond of
#: building the same statement again, most of what a short row cost the gpu process.
_ANSWERED = (
    "UPDATE {table} SET state = %s, output = %s, prompt_tokens = %s, completion_tokens = %s, cached_tokens = %s, ended_at = %s"
    " WHERE id = %s AND chunk_id = %s AND state = %s"
)


def _write(chunk_id: str, outcomes: Sequence[Outcome], now: datetime) -> None:
    """Give pending calls of this chunk their outcomes, inside the caller's transaction."""
    ended_at = connection.ops.adapt_datetimefield_value(now)
    answered = [
        (RowCall.State.DONE.value, encode_output(one.output), one.output.usage.prompt, one.output.usage.completion)
        + (one.output.usage.cached, ended_at, one.call, chunk_id, RowCall.State.PENDING.value)
        for one in outcomes
        if one.output is not None
    ]
    if answered:
        with connection.cursor() as cursor:
            cursor.executemany(_ANSWERED.format(table=RowCall._meta.db_table), answered)
    for one in outcomes:
        if one.error is not None:
            error = {name: getattr(one.error, name) for name in ("code", "message", "status", "param")}
            pending = RowCall.objects.filter(pk=one.call, chunk=chunk_id, state=RowCall.State.PENDING)
            pending.update(state=RowCall.State.FAILED, error=error, ended_at=now)


def held_among(held: Collection[tuple[str, int]]) -> set[tuple[str, int]]:
    """Which of these chunks, by id and fence, still run; the others were cancelled or given to somebody else."""
    running = RowChunk.objects.filter(id__in=[chunk for chunk, _ in held], state=RowChunk.State.RUNNING)
    return set(held) & set(running.values_list("id", "fence"))


def beat(held: Collection[tuple[str, int]]) -> None:
    """Sign of life for chunks of one process, in one statement. A beat for a chunk just lost does no harm."""
    running = RowChunk.objects.filter(id__in=[chunk for chunk, _ in held], state=RowChunk.State.RUNNING)
    running.update(heartbeat_at=timezone.now())


def model_of(chunk_id: str) -> str:
    """The model a chunk's calls are for; a chunk has calls of one model only. "" when it has none any more."""
    request = RowCall.objects.filter(chunk=chunk_id).values_list("request", flat=True).first()
    return decode_request(bytes(request)).model if request is not None else ""


def move(chunk_id: str, fence: int, host: str) -> list[Sending]:
    """Give a chunk that waits for one host to another."""
    now = timezone.now()
    waiting = RowChunk.objects.filter(id=chunk_id, fence=fence, state=RowChunk.State.QUEUED)
    moved = waiting.update(host=host, fence=fence + 1, due_at=now, sent_at=now)
    return [Sending(chunk_id, host, fence + 1)] if moved else []


def give_back(chunk_id: str, fence: int, *, delay_s: float) -> None:
    """Return a chunk that cannot go on now; the sweeper sends it again when it is due."""
    RowChunk.objects.filter(id=chunk_id, fence=fence, state=RowChunk.State.RUNNING).update(
        state=RowChunk.State.QUEUED,
        fence=F("fence") + 1,
        owner="",
        due_at=timezone.now() + timedelta(seconds=delay_s),
        sent_at=None,
    )


def cancel_job(job: str) -> int:
    """Stop the unfinished chunks of a job. Its unfinished calls stay pending, should the job be resumed."""
    return RowChunk.objects.filter(job=job, state__in=LIVE).update(state=RowChunk.State.CANCELLED, ended_at=timezone.now())


def requeue_orphan(chunk_id: str, fence: int) -> list[Sending]:
    """The owner of a running chunk is gone: raise the fence and queue it again.

    An owner that died before finishing one call is a death without progress. After two of them every open
    call gets a chunk of its own; a call whose owner dies alone with it is failed as ``poisoned``.
    """
    now = timezone.now()
    with transaction.atomic():
        chunk = RowChunk.objects.select_for_update().filter(id=chunk_id, fence=fence, state=RowChunk.State.RUNNING).first()
        if chunk is None:
            return []
        members = list(RowCall.objects.filter(chunk=chunk, state=RowCall.State.PENDING).order_by("ordinal", "id"))
        deaths = chunk.deaths + 1 if len(members) >= chunk.open_at_claim else 0
        if not members:
            _end(chunk, now)
            return []
        if deaths >= DEATHS_BEFORE_POISON and len(members) == 1:
            why = f"This row was given up: its worker died {deaths} times while it ran."
            RowCall.objects.filter(pk=members[0].pk, state=RowCall.State.PENDING).update(
                state=RowCall.State.FAILED, error={"code": "poisoned", "message": why, "status": 500}, ended_at=now
            )
            _end(chunk, now)
            return []
        if deaths >= DEATHS_BEFORE_SPLIT and len(members) > 1:
            _end(chunk, now)
            singles = [_make_chunk(chunk.job, chunk.host, [call], deaths=deaths) for call in members]
            return [Sending(single.id, single.host, single.fence) for single in singles]
        chunk.state, chunk.fence, chunk.owner, chunk.deaths = RowChunk.State.QUEUED, chunk.fence + 1, "", deaths
        chunk.due_at, chunk.sent_at = now, now
        chunk.save()
        return [Sending(chunk.id, chunk.host, chunk.fence)]


def _end(chunk: RowChunk, now: datetime) -> None:
    chunk.state, chunk.fence, chunk.ended_at = RowChunk.State.DONE, chunk.fence + 1, now
    chunk.save()


def requests_of(job: str, keys: Iterable[str]) -> dict[str, RowCall]:
    """The recorded calls behind a row, for previews and provenance."""
    return {call.key: call for call in RowCall.objects.filter(job=job, key__in=list(keys))}


def reopen_failed(job: str) -> int:
    """Give every failed call of a job another try, for a job that a person starts again."""
    return RowCall.objects.filter(job=job, state=RowCall.State.FAILED).update(
        state=RowCall.State.PENDING, error=None, chunk=None, ended_at=None
    )
