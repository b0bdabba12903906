"""The report on a version: how long its rows are, what the calls cost, how fast it went."""

from __future__ import annotations

from typing import Any

from django.db.models import Avg, Max, Min, Sum

from mlxplatform.datasets.models import DatasetRow
from mlxplatform.rows.contract import decode_output
from mlxplatform.rows.models import RowCall

#: Upper bounds of the length histogram, characters.
BUCKETS = (50, 100, 200, 400, 800, 1600, 3200, 6400, 12800)


def histogram(version: int) -> list[dict[str, int | None]]:
    """Accepted rows by length; the last bucket is open."""
    accepted = DatasetRow.objects.filter(version=version, state=DatasetRow.State.ACCEPTED)
    bars: list[dict[str, int | None]] = []
    low = 0
    for high in (*BUCKETS, None):
        part = accepted.filter(chars__gte=low)
        if high is not None:
            part = part.filter(chars__lt=high)
        bars.append({"from": low, "to": high, "rows": part.count()})
        low = high or low
    return bars


def spent(job: str) -> dict[str, int]:
    """Model calls of a job and their tokens."""
    calls = RowCall.objects.filter(job=job)
    tokens = calls.aggregate(prompt=Sum("prompt_tokens"), completion=Sum("completion_tokens"))
    return {"calls": calls.count(), "prompt_tokens": tokens["prompt"] or 0, "completion_tokens": tokens["completion"] or 0}


def reused(job: str) -> dict[str, int]:
    """Calls that an earlier job (a preview, the version before) had made, with the tokens they took there.

    They count no tokens in this job; what a run took can be held against its forecast only together with them.
    """
    made_before = RowCall.objects.filter(job=job, state=RowCall.State.DONE, prompt_tokens=0, completion_tokens=0)
    found = {"calls": 0, "prompt_tokens": 0, "completion_tokens": 0}
    for raw in made_before.values_list("output", flat=True).iterator(chunk_size=500):
        if raw is None:
            continue
        usage = decode_output(bytes(raw)).usage
        found["calls"] += 1
        found["prompt_tokens"] += usage.prompt
        found["completion_tokens"] += usage.completion
    return found


def report(version: int, job: str, seconds: float) -> dict[str, Any]:
    accepted = DatasetRow.objects.filter(version=version, state=DatasetRow.State.ACCEPTED)
    chars = accepted.aggregate(low=Min("chars"), high=Max("chars"), mean=Avg("chars"))
    return {
        "chars": {"min": chars["low"], "max": chars["high"], "mean": round(chars["mean"] or 0, 1)},
        "histogram": histogram(version),
        **spent(job),
        "reused": reused(job),
        "seconds": round(seconds, 2),
    }
