"""What lies ahead of a job: its place in the queue, and when it will be done. Reads SQL, estimates in a pure function."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

from django.db.models import Q

from mlxplatform.jobs.models import Job
from mlxplatform.jobs.states import QUEUED, RUNNING

#: Newest progress events looked at.
POINTS = 40
#: Steps of progress before anything is said.
FEWEST = 3


def outlook(job: Job) -> dict[str, Any]:
    """``position`` (1: next) of a queued job, ``eta`` of a running one; null where there is nothing to say."""
    position = _position(job) if job.state == QUEUED else None
    eta = None
    if job.state == RUNNING:
        stages = job.events.filter(type="stage").order_by("-seq").values_list("at", "payload")[:POINTS]
        points = [(at.timestamp(), payload["progress"]) for at, payload in stages if payload.get("progress") is not None]
        eta = estimate(points[::-1])
    return {"position": position, "eta": eta}


def _position(job: Job) -> int:
    """Place among the queued jobs of its queue: priority, then age."""
    ahead = Q(priority__gt=job.priority) | Q(priority=job.priority, created_at__lt=job.created_at)
    return Job.objects.filter(ahead, queue=job.queue, state=QUEUED).count() + 1


def estimate(points: Sequence[tuple[float, float]]) -> dict[str, float] | None:
    """Unix seconds of the end, with bounds, from (time, progress) in order; None while progress is too little or none.

    The bounds are about two standard errors of the mean rate: honest for steady work, wide for work in bursts.
    """
    steps = [(t1 - t0, p1 - p0) for (t0, p0), (t1, p1) in itertools.pairwise(points) if t1 > t0 and p1 >= p0]
    if len(steps) < FEWEST:
        return None
    elapsed, gained = sum(step[0] for step in steps), sum(step[1] for step in steps)
    if gained <= 0:
        return None
    now, done = points[-1]
    mean = gained / elapsed
    spread = 2 * statistics.stdev(gain / time for time, gain in steps) / len(steps) ** 0.5
    left = max(1.0 - done, 0.0)
    slowest = max(mean - spread, mean / 10)
    return {
        "done_at": round(now + left / mean, 1),
        "earliest": round(now + left / (mean + spread), 1),
        "latest": round(now + left / slowest, 1),
    }
