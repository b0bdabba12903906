"""Jobs at size: lists over 100,000 jobs, appending events, 200 readers of one log. Printed by ``make bench``."""

from __future__ import annotations

import asyncio
import datetime as dt
import statistics
import time
from collections.abc import Callable

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.utils import timezone

from mlxplatform.jobs import moves, queries, service
from mlxplatform.jobs.feed import feed
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.moves import Holder, NewEvent
from tests.fixtures import job_kinds

pytestmark = [
    pytest.mark.bench,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("broker"),
    pytest.mark.timeout(900),
]

JOBS, EVENTS_EACH = 100_000, 10
READS = 60
STATES = ("done", "failed", "cancelled", "queued")


def say(what: str, figure: str) -> None:
    print(f"\n{what:60} {figure}")


def p95(measure: Callable[[], object]) -> float:
    """Milliseconds."""
    taken = []
    for _ in range(READS):
        started = time.perf_counter()
        measure()
        taken.append((time.perf_counter() - started) * 1000)
    return statistics.quantiles(taken, n=20)[-1]


def fill() -> str:
    """A hundred thousand jobs with ten events each, made inside the database; the id in the middle."""
    start = timezone.now() - dt.timedelta(days=30)
    kinds = ("batch", "dataset", "finetune", "quantize")
    Job.objects.bulk_create(
        [
            Job(
                id=f"job_{n:016x}",
                kind=kinds[n % 4],
                queue="cpu",
                state=STATES[0] if n % 50 else STATES[n // 50 % 4],
                created_at=start + dt.timedelta(seconds=n * 20),
                last_seq=EVENTS_EACH,
            )
            for n in range(JOBS)
        ],
        batch_size=2000,
    )
    payload = "'{}'::jsonb" if connection.vendor == "postgresql" else "'{}'"
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobs_jobevent (job_id, seq, type, payload, at) "
            "WITH RECURSIVE n(seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM n WHERE seq < %s) "
            f"SELECT jobs_job.id, n.seq, 'log', {payload}, jobs_job.created_at FROM jobs_job, n",
            [EVENTS_EACH],
        )
        cursor.execute("ANALYZE")  # as databases that have had these rows for a minute have done by themselves
    return f"job_{JOBS // 2:016x}"


def test_lists_of_100_000_jobs() -> None:
    middle = fill()
    pages = {
        "newest 50": {},
        "by kind": {"kind": "finetune"},
        "by state (rare)": {"state": "failed"},
        "by kind and state": {"kind": "batch", "state": "cancelled"},
        "deep page": {"after": middle},
    }
    worst = 0.0
    for name, params in pages.items():
        taken = p95(lambda params=params: queries.page(Job.objects.all(), params))
        worst = max(worst, taken)
        say(f"list of {JOBS:,} jobs, {JOBS * EVENTS_EACH:,} events: {name}, p95", f"{taken:.1f} ms")
    taken = p95(lambda: moves.claimable("cpu").first())
    say("finding the next job to run, p95", f"{taken:.1f} ms")
    assert max(worst, taken) <= 50


def test_appending_events() -> None:
    job_kinds.register()
    service.submit("test.lines", {"n": 1})
    job = moves.claim("cpu", "w")
    assert job is not None
    batch = [NewEvent("log", {"line": f"line {n}"}) for n in range(200)]
    rates = []
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(10):
            moves.append(job.id, Holder("w", job.fence), batch)
        rates.append(2000 / (time.perf_counter() - started))
    rate = statistics.median(rates)
    say("events appended", f"{rate:,.0f} /s")
    assert rate >= 2000


async def test_200_readers_of_one_job() -> None:
    job_kinds.register()
    await sync_to_async(service.submit)("test.lines", {"n": 1})
    job = await sync_to_async(moves.claim)("cpu", "w")
    assert job is not None
    holder = Holder("w", job.fence)

    async def reader() -> int:
        return sum([len(page) async for page in feed().follow(job.id, 0)])

    readers = [asyncio.ensure_future(reader()) for _ in range(200)]
    started = time.perf_counter()
    for n in range(20):
        await sync_to_async(moves.append)(job.id, holder, [NewEvent("log", {"line": str(n)})] * 50)
    await sync_to_async(moves.move)(job.id, "done", holder=holder)
    counts = await asyncio.gather(*readers)
    say("200 readers, 1,003 events each", f"{time.perf_counter() - started:.2f} s in all")
    assert set(counts) == {1003}
