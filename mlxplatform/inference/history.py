"""The response history: stored answers in SQL, shared by all web processes, bounded by age and by bytes.

Rows live ``HISTORY_DAYS`` from creation; a read makes them younger only for the byte cap, whose victims are the least
recently used. A row of another project does not exist. A row is written at admission when somebody may come back for
it (a stored stream, a background response), otherwise once, when the answer is complete. Ends are
compare-and-set: whoever ends an answer first has ended it.

Functions are synchronous units of work; async callers wrap them once.
"""

from __future__ import annotations

import asyncio
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ParamSpec, TypeVar

import msgspec
from django.conf import settings
from django.db import close_old_connections, transaction
from django.db.models import Q, Sum
from django.utils import timezone

from mlxplatform.inference.contract import Event, decode_events, encode
from mlxplatform.inference.models import StoredAnswer

P = ParamSpec("P")
T = TypeVar("T")
Kind = StoredAnswer.Kind
Status = StoredAnswer.Status

MIB = 1024 * 1024
#: Seconds between two sweeps of this process; each is two indexed queries when there is nothing to do.
SWEEP_SECONDS = 30.0
#: Rows removed in one statement, so that no lock is held long.
SWEEP_ROWS = 500
#: Seconds between two writes of a row's time of use.
TOUCH_SECONDS = 60
OPEN = (Status.QUEUED, Status.IN_PROGRESS)

_threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="history")
_dumps = msgspec.json.Encoder().encode
_sweep_lock = threading.Lock()
_swept_at = 0.0


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
        "model": record.model,
        "background": record.background,
        "host": record.host,
        "events": record.events,
        "bytes": sum(map(len, texts.values())) + len(record.events or b""),
        "used_at": now,
    }
    expires = now + timedelta(days=settings.ENV.history_days)
    StoredAnswer.objects.update_or_create(
        id=record.id, defaults=values, create_defaults={**values, "created_at": now, "expires_at": expires}
    )
    sweep_sometimes()


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
    sweep_sometimes()
    return True


def load(answer_id: str, kind: str, project: str) -> StoredAnswer | None:
    """A live row of this project; using it protects it from the byte cap, not from its age."""
    now = timezone.now()
    row = StoredAnswer.objects.filter(id=answer_id, kind=kind, project=project, expires_at__gt=now).first()
    if row is not None and (now - row.used_at).total_seconds() > TOUCH_SECONDS:
        StoredAnswer.objects.filter(id=answer_id).update(used_at=now)
    return row


def delete(answer_id: str, kind: str, project: str) -> bool:
    deleted, _ = StoredAnswer.objects.filter(id=answer_id, kind=kind, project=project).delete()
    return bool(deleted)


def page(
    kind: str, project: str, *, limit: int, after: str | None, ascending: bool, model: str | None = None
) -> tuple[list[StoredAnswer], bool]:
    """A page of finished rows and whether more follow."""
    rows = StoredAnswer.objects.filter(kind=kind, project=project, expires_at__gt=timezone.now()).exclude(status__in=OPEN)
    if model is not None:
        rows = rows.filter(model=model)
    rows = rows.order_by("created_at", "id") if ascending else rows.order_by("-created_at", "-id")
    if after is not None:
        anchor: datetime | None = (
            StoredAnswer.objects.filter(id=after, project=project).values_list("created_at", flat=True).first()
        )
        if anchor is None:
            return [], False
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


def sweep_sometimes() -> None:
    global _swept_at
    with _sweep_lock:
        if time.monotonic() - _swept_at < SWEEP_SECONDS:
            return
        _swept_at = time.monotonic()
    sweep()


def sweep() -> int:
    """Remove what is too old, then the least recently used until the rest fits; returns the number removed."""
    removed = 0
    while True:
        expired = list(StoredAnswer.objects.filter(expires_at__lte=timezone.now()).values_list("id", flat=True)[:SWEEP_ROWS])
        if not expired:
            break
        removed += StoredAnswer.objects.filter(id__in=expired).delete()[0]
    excess = (StoredAnswer.objects.aggregate(total=Sum("bytes"))["total"] or 0) - settings.ENV.history_mb * MIB
    while excess > 0:
        oldest = list(StoredAnswer.objects.exclude(status__in=OPEN).order_by("used_at").values_list("id", "bytes")[:SWEEP_ROWS])
        if not oldest:
            break
        victims = []
        for row_id, size in oldest:
            if excess <= 0:
                break
            victims.append(row_id)
            excess -= size
        removed += StoredAnswer.objects.filter(id__in=victims).delete()[0]
    return removed


def statistics() -> dict[str, int]:
    total = StoredAnswer.objects.aggregate(total=Sum("bytes"))["total"] or 0
    return {
        "entries": StoredAnswer.objects.count(),
        "bytes": total,
        "max_bytes": settings.ENV.history_mb * MIB,
        "ttl_ms": settings.ENV.history_days * 86_400_000,
    }
