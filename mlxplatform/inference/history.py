"""The response history: stored answers in SQL, shared by all web processes, bounded by age and by bytes.

:mod:`mlxplatform.inference.request_log` keeps a line about every finished request beside it, under the same bounds.

Rows live ``HISTORY_DAYS`` from creation; a read makes them younger only for the byte cap, whose victims are the least
recently used. A row of another project does not exist. A row is written at admission when somebody may come back for
it (a stored stream, a background response), otherwise once, when the answer is complete. Ends are
compare-and-set: whoever ends an answer first has ended it.

Functions are synchronous units of work; async callers wrap them once.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ParamSpec, TypeVar

import msgspec
from django.conf import settings
from django.db import close_old_connections, transaction
from django.db import models as orm
from django.db.models import Count, Q, QuerySet, Sum
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast
from django.utils import timezone

from mlxplatform.inference import request_log
from mlxplatform.inference.contract import Event, Refusal, decode_events, encode
from mlxplatform.inference.models import FinishedRequest, StoredAnswer
from mlxplatform.retention import policy

P = ParamSpec("P")
T = TypeVar("T")
Kind = StoredAnswer.Kind
Status = StoredAnswer.Status

MIB = 1024 * 1024
#: Rows removed in one statement, so that no lock is held long.
SWEEP_ROWS = 500
#: Bytes of a row beside its texts: its other columns and its entries in the indexes.
ROW_BYTES = 400
#: Seconds between two writes of a row's time of use.
TOUCH_SECONDS = 60
OPEN = (Status.QUEUED, Status.IN_PROGRESS)

_threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="history")
_dumps = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Record:
    """What is kept of an answer; ``request``, ``items`` and ``answer`` are the protocol's own JSON values."""

    id: str
    kind: str
    project: str
    model: str
    request: Any
    items: Any
    answer: Any
    metadata: dict[str, str]
    status: str = Status.COMPLETED
    background: bool = False
    host: str = ""
    events: bytes | None = None
    #: "key:<id>", "user:<name>" or "local".
    created_by: str = ""


def dumps(value: Any) -> str:
    return _dumps(value).decode()


def loads(raw: str) -> Any:
    return msgspec.json.decode(raw)


def pack_events(events: Sequence[Event]) -> bytes:
    return zlib.compress(encode(list(events)), 1)


def unpack_events(raw: bytes) -> list[Event]:
    return decode_events(zlib.decompress(raw))


def enabled() -> bool:
    return bool(settings.ENV.store)


async def off_loop(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run one unit of work in a thread of the history's own, also where no request is under way."""

    def run() -> T:
        close_old_connections()
        return work(*args, **kwargs)

    return await asyncio.get_running_loop().run_in_executor(_threads, run)


def save(record: Record) -> None:
    """Insert or replace a row."""
    now = timezone.now()
    texts = {
        "request": dumps(record.request),
        "items": dumps(record.items),
        "answer": dumps(record.answer),
        "metadata": dumps(record.metadata),
    }
    values = {
        **texts,
        "kind": record.kind,
        "status": record.status,
        "project": record.project,
        "created_by": record.created_by[:64],
        "model": record.model,
        "background": record.background,
        "host": record.host,
        "events": record.events,
        "bytes": sum(map(len, texts.values())) + len(record.events or b""),
        "used_at": now,
    }
    expires = now + timedelta(days=policy.current().history_days)
    StoredAnswer.objects.update_or_create(
        id=record.id, defaults=values, create_defaults={**values, "created_at": now, "expires_at": expires}
    )


def end(answer_id: str, status: str, answer: Any, events: bytes | None) -> bool:
    """End an open row; False when it was ended before (cancelled, deleted)."""
    text = dumps(answer)
    with transaction.atomic():
        row = StoredAnswer.objects.select_for_update().filter(id=answer_id, status__in=OPEN).first()
        if row is None:
            return False
        row.status, row.answer, row.events = status, text, events
        row.bytes = len(row.request) + len(row.items) + len(row.metadata) + len(text) + len(events or b"")
        row.save(update_fields=["status", "answer", "events", "bytes"])
    return True


def load(answer_id: str, kind: str, project: str) -> StoredAnswer | None:
    """A live row of this project; using it protects it from the byte cap, not from its age."""
    if "\0" in answer_id:  # no id holds one, and PostgreSQL fails on it instead of finding nothing
        return None
    now = timezone.now()
    row = StoredAnswer.objects.filter(id=answer_id, kind=kind, project=project, expires_at__gt=now).first()
    if row is not None and (now - row.used_at).total_seconds() > TOUCH_SECONDS:
        StoredAnswer.objects.filter(id=answer_id).update(used_at=now)
    return row


def delete(answer_id: str, kind: str, project: str) -> bool:
    """Delete an answer on its owner's order, with the line about its request."""
    with transaction.atomic():
        deleted, _ = StoredAnswer.objects.filter(id=answer_id, kind=kind, project=project).delete()
        if deleted:
            request_log.forget(project, request_id=answer_id)
    return bool(deleted)


def page(
    kind: str,
    project: str,
    *,
    limit: int,
    after: str | None,
    ascending: bool,
    model: str | None = None,
    metadata: Mapping[str, str] | None = None,
) -> tuple[list[StoredAnswer], bool]:
    """A page of finished rows, of those with all of ``metadata``'s pairs, and whether more follow.

    Raises:
        Refusal: ``after`` names none of them.
    """
    rows = StoredAnswer.objects.filter(kind=kind, project=project, expires_at__gt=timezone.now()).exclude(status__in=OPEN)
    if model is not None:
        rows = rows.filter(model=model)
    for index, (key, value) in enumerate((metadata or {}).items()):
        kept = Cast(KeyTextTransform(key, Cast("metadata", orm.JSONField())), orm.TextField())
        rows = rows.alias(**{f"pair_{index}": kept}).filter(**{f"pair_{index}": value})
    rows = rows.order_by("created_at", "id") if ascending else rows.order_by("-created_at", "-id")
    if after is not None:
        anchor: datetime | None = (
            StoredAnswer.objects.filter(id=after, project=project).values_list("created_at", flat=True).first()
        )
        if anchor is None:
            raise Refusal(400, "invalid_value", "after must be the id of something in this list.", param="after")
        rows = (
            rows.filter(Q(created_at__gt=anchor) | Q(created_at=anchor, id__gt=after))
            if ascending
            else rows.filter(Q(created_at__lt=anchor) | Q(created_at=anchor, id__lt=after))
        )
    found = list(rows.defer("events")[: limit + 1])
    return found[:limit], len(found) > limit


def update_metadata(answer_id: str, kind: str, project: str, metadata: dict[str, str]) -> bool:
    return bool(StoredAnswer.objects.filter(id=answer_id, kind=kind, project=project).update(metadata=dumps(metadata)))


def change_items(answer_id: str, change: Callable[[list[Any]], list[Any]]) -> None:
    """Replace the items of a row by what ``change`` makes of them, whoever else is changing them."""
    with transaction.atomic():
        row = StoredAnswer.objects.select_for_update().filter(id=answer_id).first()
        if row is not None:
            row.items = dumps(change(loads(row.items)))
            row.bytes = len(row.request) + len(row.items) + len(row.metadata) + len(row.answer) + len(row.events or b"")
            row.save(update_fields=["items", "bytes"])


def sweep() -> int:
    """Remove what is too old, then the least recently used until the rest fits; returns the number removed.

    Stored answers and the lines about finished requests share one age and one cap.
    """
    now, keep = timezone.now(), policy.current()
    edge = now - timedelta(days=keep.history_days)
    # Both: a shorter age holds for what is there, a longer one for what comes.
    removed = _remove_in_parts(StoredAnswer.objects.filter(expires_at__lte=now))
    removed += _remove_in_parts(StoredAnswer.objects.filter(created_at__lte=edge))
    removed += _remove_in_parts(FinishedRequest.objects.filter(ended_at__lte=edge))
    excess = sum(_bytes(model) for model in (StoredAnswer, FinishedRequest)) - keep.history_mb * MIB
    while excess > 0:
        victims = _least_recently_used()
        if not victims:
            break
        doomed: dict[type[StoredAnswer] | type[FinishedRequest], list[str]] = {StoredAnswer: [], FinishedRequest: []}
        for _, model, row_id, size in victims:
            if excess <= 0:
                break
            doomed[model].append(row_id)
            excess -= size
        removed += sum(model.objects.filter(id__in=ids).delete()[0] for model, ids in doomed.items())
    return removed


def _remove_in_parts(rows: QuerySet[Any]) -> int:
    removed = 0
    while part := list(rows.values_list("id", flat=True)[:SWEEP_ROWS]):
        removed += rows.model.objects.filter(id__in=part).delete()[0]
    return removed


def _bytes(model: type[StoredAnswer] | type[FinishedRequest]) -> int:
    """Bytes of all rows, each with what it costs beside its texts."""
    sums = model.objects.aggregate(total=Sum("bytes"), rows=Count("id"))
    return (sums["total"] or 0) + ROW_BYTES * sums["rows"]


def _least_recently_used() -> list[tuple[datetime, type[StoredAnswer] | type[FinishedRequest], str, int]]:
    """The next rows to go, of both kinds; an answer that is still being written is not among them."""
    answers = StoredAnswer.objects.exclude(status__in=OPEN).order_by("used_at").values_list("used_at", "id", "bytes")
    requests = FinishedRequest.objects.order_by("ended_at").values_list("ended_at", "id", "bytes")
    found: list[tuple[datetime, type[StoredAnswer] | type[FinishedRequest], str, int]] = []
    found += [(at, StoredAnswer, row_id, size + ROW_BYTES) for at, row_id, size in answers[:SWEEP_ROWS]]
    found += [(at, FinishedRequest, row_id, size + ROW_BYTES) for at, row_id, size in requests[:SWEEP_ROWS]]
    # Beyond the shorter list's end, rows of the other kind may be younger than some that were not looked at.
    return sorted(found, key=lambda row: row[0])[:SWEEP_ROWS]


def statistics() -> dict[str, int]:
    keep = policy.current()
    return {
        "entries": StoredAnswer.objects.count(),
        "requests": FinishedRequest.objects.count(),
        "bytes": _bytes(StoredAnswer) + _bytes(FinishedRequest),
        "max_bytes": keep.history_mb * MIB,
        "ttl_ms": keep.history_days * 86_400_000,
    }
