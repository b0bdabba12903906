"""Jobs and their events as JSON: one shape for REST, SSE, WebSocket and export."""

from __future__ import annotations

import datetime as dt
from typing import Any

from mlxplatform.jobs.models import Job, JobEvent


def time_text(at: dt.datetime | None) -> str | None:
    """RFC 3339 in UTC with milliseconds."""
    if at is None:
        return None
    return at.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def job_json(job: Job) -> dict[str, Any]:
    """A job's row for clients. ``status`` repeats ``state`` for clients of the older system."""
    return {
        "id": job.id,
        "kind": job.kind,
        "state": job.state,
        "status": job.state,
        "progress": job.progress,
        "message": job.message,
        "error": job.error or None,
        "error_code": job.error_code or None,
        "config": job.config,
        "result": job.result,
        "priority": job.priority,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "deaths": job.deaths,
        "queue": job.queue,
        "project": job.project,
        "created_by": job.created_by,
        "parent": job.parent_id,
        "pausing": job.wish == "pause",
        "last_event": job.last_seq,
        "created_at": time_text(job.created_at),
        "started_at": time_text(job.started_at),
        "ended_at": time_text(job.ended_at),
        "due_at": time_text(job.due_at),
        "deadline_at": time_text(job.deadline_at),
    }


def event_json(event: JobEvent) -> dict[str, Any]:
    """An event for clients: the payload's fields beside number, type and time in milliseconds since 1970."""
    return {**event.payload, "type": event.type, "seq": event.seq, "ts": int(event.at.timestamp() * 1000)}
