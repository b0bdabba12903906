"""Jobs as CSV, streamed page by page so that neither memory nor a database lock grows with their number.

A text that a spreadsheet would run as a formula gets a leading apostrophe: still readable, no longer a formula.
"""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Mapping
from typing import Any

from asgiref.sync import sync_to_async
from django.db.models import QuerySet

from mlxplatform.jobs import queries
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.wire import time_text
from mlxplatform.spreadsheet import inert

COLUMNS = (
    "id",
    "kind",
    "state",
    "progress",
    "message",
    "error_code",
    "error",
    "attempts",
    "priority",
    "queue",
    "project",
    "created_by",
    "created_at",
    "started_at",
    "ended_at",
)


def cell(value: Any) -> str:
    """The value as an inert cell."""
    if not isinstance(value, str):
        return "" if value is None else str(value)
    return inert(value)


async def rows(jobs: QuerySet[Job], params: Mapping[str, str]) -> AsyncIterator[bytes]:
    """A header line, then one line per job, newest first."""
    yield _lines([COLUMNS])
    asked = {**params, "limit": str(queries.MAX_LIMIT)}
    while True:
        page = await sync_to_async(queries.page)(jobs, asked)
        if page.jobs:
            yield _lines([_row(job) for job in page.jobs])
        if not page.has_more:
            return
        asked["after"] = page.jobs[-1].id


def _row(job: Job) -> tuple[str, ...]:
    times = {name: time_text(getattr(job, name)) for name in ("created_at", "started_at", "ended_at")}
    return tuple(cell(times[name] if name in times else getattr(job, name)) for name in COLUMNS)


def _lines(lines: list[tuple[str, ...]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(lines)
    return text.getvalue().encode()
