"""Many writers at once, a lock that is held, and two claims for one place: nothing is lost and nothing is a 500."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from django.db import connection, connections
from django.test import Client

from mlxplatform.jobs import moves, service
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.moves import Holder, NewEvent
from tests.fixtures import job_kinds

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker")]


@pytest.fixture(scope="module", autouse=True)
def _kinds() -> None:
    job_kinds.register()


@contextmanager
def locked() -> Iterator[None]:
    """Somebody else holds the database's write lock (as an open administrator's transaction does)."""
    if connection.vendor == "sqlite":
        other = sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        yield
        other.rollback()
        other.close()
    else:
        other = connection.copy()
        with other.cursor() as cursor:
            cursor.execute("BEGIN; LOCK TABLE jobs_job IN EXCLUSIVE MODE")
            yield
            cursor.execute("ROLLBACK")
        other.close()


def be_impatient() -> None:
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 50" if connection.vendor == "sqlite" else "SET lock_timeout = '50ms'")


def submit_and_cancel(number: int) -> str:
    try:
        job = service.submit("test.lines", {"n": number})
        return service.cancel(job.id).state
    finally:
        connections.close_all()


def test_forty_writers_and_a_busy_worker_lose_nothing() -> None:
    service.submit("test.forever", {}, priority=9)
    running = moves.claim("cpu", "w")
    assert running is not None
    stop = threading.Event()
    appended = 0

    def work() -> None:
        nonlocal appended
        while not stop.wait(0.01):
            moves.append(running.id, Holder("w", running.fence), [NewEvent("log", {"line": "x"})], progress=0.5)
            appended += 1
        connections.close_all()

    worker = threading.Thread(target=work)
    worker.start()
    with ThreadPoolExecutor(40) as writers:
        states = list(writers.map(submit_and_cancel, range(120)))
    stop.set()
    worker.join()
    assert states == ["cancelled"] * 120
    assert Job.objects.filter(state="cancelled").count() == 120
    assert running.events.filter(type="log").count() == appended > 0


def test_one_job_is_claimed_once_by_many_workers() -> None:
    job = service.submit("test.lines", {"n": 1})

    def claim(number: int) -> str | None:
        try:
            claimed = moves.claim("cpu", f"w{number}")
            return claimed.owner if claimed else None
        finally:
            connections.close_all()

    with ThreadPoolExecutor(16) as workers:
        owners = [owner for owner in workers.map(claim, range(32)) if owner]
    job.refresh_from_db()
    assert owners == [job.owner]
    assert (job.attempts, job.fence) == (1, 1)


def test_a_concurrency_limit_holds_against_simultaneous_claims() -> None:
    for number in range(8):
        service.submit("test.one", {"n": number})

    def claim(number: int) -> bool:
        try:
            return moves.claim("cpu", f"w{number}") is not None
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as workers:
        assert sum(workers.map(claim, range(16))) == 1


def test_a_lock_held_too_long_is_a_503_and_everything_is_well_after(client: Client) -> None:
    job = service.submit("test.lines", {"n": 1})
    be_impatient()
    with locked():
        refused = client.post(f"/api/jobs/{job.id}/cancel", content_type="application/json")
    assert refused.status_code == 503
    assert refused.json()["code"] == "database_busy"
    assert refused["Retry-After"]
    assert client.post(f"/api/jobs/{job.id}/cancel", content_type="application/json").json()["job"]["state"] == "cancelled"
    connection.close()
