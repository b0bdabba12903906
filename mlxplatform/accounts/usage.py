"""The usage ledger: requests and tokens per key, model and UTC day.

Finished requests are added up in this process and written every few seconds in one transaction, so that a
busy server writes a handful of rows rather than one a request. A killed process loses at most
:data:`FLUSH_SECONDS` of counting; nothing is counted twice.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime

from django.db import transaction
from django.db.models import F

from mlxplatform.accounts.models import UsageDay
from mlxplatform.behind import WriteBehind
from mlxplatform.inference.contract import Usage

#: Longest time a finished request stays uncounted, seconds.
FLUSH_SECONDS = 2.0


@dataclass(frozen=True)
class Line:
    """What one row of the ledger is about."""

    day: date
    project: str
    key_id: str
    model: str


@dataclass
class Sum:
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


_lock = threading.Lock()
_pending: dict[Line, Sum] = defaultdict(Sum)


def add(project: str, key_id: str, model: str, usage: Usage) -> None:
    """Count one finished request. Never blocks on the database: a thread of this module writes."""
    line = Line(datetime.now(UTC).date(), project, key_id, model)
    with _lock:
        total = _pending[line]
        total.requests += 1
        total.prompt_tokens += usage.prompt
        total.cached_tokens += usage.cached
        total.completion_tokens += usage.completion
    _behind.wake()


def flush() -> int:
    """Write what has been counted; returns the number of ledger rows touched."""
    with _lock:
        lines = dict(_pending)
        _pending.clear()
    if not lines:
        return 0
    try:
        _write(lines.items())
    except Exception:
        with _lock:
            for line, total in lines.items():
                kept = _pending[line]
                for field in fields(Sum):
                    setattr(kept, field.name, getattr(kept, field.name) + getattr(total, field.name))
        raise
    return len(lines)


@transaction.atomic
def _write(lines: Iterable[tuple[Line, Sum]]) -> None:
    for line, total in lines:
        row, _ = UsageDay.objects.get_or_create(day=line.day, project=line.project, key_id=line.key_id, model=line.model)
        UsageDay.objects.filter(pk=row.pk).update(
            requests=F("requests") + total.requests,
            prompt_tokens=F("prompt_tokens") + total.prompt_tokens,
            cached_tokens=F("cached_tokens") + total.cached_tokens,
            completion_tokens=F("completion_tokens") + total.completion_tokens,
        )


_behind = WriteBehind("usage", flush, FLUSH_SECONDS)
