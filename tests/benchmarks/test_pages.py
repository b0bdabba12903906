"""The console at size: server time of every page over 100,000 jobs and 1,000 datasets, first-visit bytes, the key check."""

from __future__ import annotations

import asyncio
import datetime as dt
import gzip
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from asgiref.sync import async_to_sync
from django.contrib.staticfiles import finders
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone

from mlxplatform.accounts import identity, keys, people
from mlxplatform.accounts.models import UsageDay
from mlxplatform.console.navigation import SECTIONS
from mlxplatform.datasets.models import Dataset, DatasetVersion
from mlxplatform.jobs.models import Job, JobEvent
from tests.benchmarks.table import Measured, line, measured

pytestmark = [
    pytest.mark.bench,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("broker"),
    pytest.mark.timeout(900),
]

JOBS, DATASETS, EVENTS = 100_000, 1_000, 2_000
VISITS = 9
BAR_MS, BAR_BYTES, BAR_KEY_MS = 200.0, 300_000, 0.3
STATES = ("done", "failed", "cancelled", "queued", "done", "done", "waiting", "done")


def fill() -> None:
    start = timezone.now() - dt.timedelta(days=30)
    kinds = ("dataset", "finetune", "batch", "quantize")
    Job.objects.bulk_create(
        (
            Job(
                id=f"job_{number:016x}",
                kind=kinds[number % 4],
                state=STATES[number % 8],
                queue="cpu",
                project=f"p{number % 5}",
                config={"model": "tiny", "n": number},
                message="as it went",
                created_at=start + dt.timedelta(seconds=number * 20),
            )
            for number in range(JOBS)
        ),
        batch_size=5000,
    )
    long_one = Job.objects.get(pk=f"job_{0:016x}")
    JobEvent.objects.bulk_create(
        JobEvent(job=long_one, seq=number, type="log", payload={"line": "x" * 80}) for number in range(1, EVENTS)
    )
    datasets = Dataset.objects.bulk_create(
        Dataset(name=f"set {number}", project=f"p{number % 5}", template="self_instruct") for number in range(DATASETS)
    )
    DatasetVersion.objects.bulk_create(
        DatasetVersion(dataset=one, number=1, state="ready", trainable=True, job=f"job_{i:016x}")
        for i, one in enumerate(datasets)
    )
    today = timezone.now().date()
    UsageDay.objects.bulk_create(
        UsageDay(day=today - dt.timedelta(days=day), project=f"p{key % 5}", key_id=f"key_{key}", model="tiny", requests=9)
        for day in range(30)
        for key in range(100)
    )


def browser(role: str) -> Client:
    password = people.add(role, role, "p1", actor="bench")
    made = Client(headers={"host": "localhost"})
    made.post("/login/", {"username": role, "password": password})
    return made


def timed(visit: Callable[[], object], times: int = VISITS) -> Measured:
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        visit()
        taken.append((time.perf_counter() - begun) * 1000)
    return measured(taken)


def test_pages_at_size() -> None:
    fill()
    paths = [reverse(link.route) for section in SECTIONS for link in section.links if link.route != "admin:index"]
    paths += [
        f"/console/jobs/job_{0:016x}",
        "/console/jobs?state=queued&page=90",
        "/console/jobs?kind=finetune&state=failed",
        f"/console/datasets/{Dataset.objects.values_list('pk', flat=True)[500]}",
    ]
    missed = []
    for role in ("admin", "member"):
        client = browser(role)
        for path in paths:
            answer = client.get(path)
            if answer.status_code in {403, 404}:
                continue
            assert answer.status_code == 200, path
            took = timed(lambda client=client, path=path: client.get(path))  # type: ignore[misc]
            print(line(f"{role}: {path}", took, "ms", f"≤ {BAR_MS:.0f}"))
            if took.median > BAR_MS:
                missed.append((role, path, took.median))
            size = weight(answer.content.decode())
            if size > BAR_BYTES:
                missed.append((role, path, size))
    home = weight(client.get("/").content.decode())
    print(f"first visit of home, compressed: {home} bytes (bar ≤ {BAR_BYTES})")
    assert not missed


def weight(page: str) -> int:
    """Bytes of a first visit: the page and every static file it names, as a browser that takes gzip gets them."""
    total = len(gzip.compress(page.encode()))
    seen = set()
    waiting = re.findall(r'(?:href|src)="/static/([^"]+)"', page)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        raw = Path(str(finders.find(name))).read_bytes()
        total += len(gzip.compress(raw))
        if name.endswith(".js"):
            folder = name.rpartition("/")[0]
            waiting += [f"{folder}/{other}" for other in re.findall(r'from "\./([^"]+)"', raw.decode())]
    return total


def test_the_key_check() -> None:
    """What a key adds to a request: the first look in SQL, then what is remembered for two seconds."""
    _, secret = keys.create("bench")
    identity.forget()
    request = RequestFactory().get("/v1/models", headers={"authorization": f"Bearer {secret}", "host": "localhost"})

    async def checks(times: int) -> list[float]:
        taken = []
        for _ in range(times):
            begun = time.perf_counter()
            await identity.identify(request)
            taken.append((time.perf_counter() - begun) * 1000)
        return taken

    taken = async_to_sync(checks)(2000)
    warm = measured(taken[1:])
    print(line("key check, remembered", warm, "ms", f"≤ {BAR_KEY_MS}"))
    print(f"key check, first look in SQL: {taken[0]:.2f} ms, once in two seconds and key")
    assert warm.high <= BAR_KEY_MS
    assert asyncio.iscoroutinefunction(identity.identify)
