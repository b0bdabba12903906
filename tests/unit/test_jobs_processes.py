"""Jobs on real worker processes: what survives kill -9, a restart and a wiped broker."""

from __future__ import annotations

import signal

import pytest
import redis

from mlxplatform.jobs import service
from mlxplatform.jobs.models import Job
from tests.fixtures import job_kinds
from tests.fixtures.job_processes import Processes, processes, wait_for  # noqa: F401  the fixture is used by name

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.fixture(scope="module", autouse=True)
def _kinds() -> None:
    job_kinds.register()


def state_of(job: Job) -> str:
    job.refresh_from_db()
    return job.state


def test_kill_9_restart_cancel_and_poison(processes: Processes, broker: redis.Redis) -> None:  # noqa: F811
    scheduler = processes.start("scheduler")
    worker = processes.start("cpu")
    victim, cancelled = service.submit("test.forever", {"a": 1}), service.submit("test.forever", {"a": 2})
    failed = service.submit("test.explains", {})
    wait_for(lambda: {state_of(victim), state_of(cancelled)} == {"running"} and state_of(failed) == "failed", "all begun")
    service.cancel(cancelled.id)
    wait_for(lambda: state_of(cancelled) == "cancelled", "the cancel")

    processes.kill(worker)
    wait_for(lambda: state_of(victim) == "queued", "the sweep after kill -9")
    assert (victim.attempts, victim.deaths) == (1, 1)

    broker.flushall()
    worker = processes.start("cpu")
    wait_for(lambda: state_of(victim) == "running", "the second attempt after a wiped broker")

    worker.send_signal(signal.SIGTERM)
    worker.wait()
    assert state_of(victim) == "queued"
    processes.kill(scheduler)

    processes.start("scheduler")
    processes.start("cpu")
    wait_for(lambda: state_of(victim) == "running", "the third attempt")
    assert (state_of(cancelled), state_of(failed)) == ("cancelled", "failed")
    started = list(cancelled.events.filter(type="started"))
    assert len(started) == 1


@pytest.mark.drill
def test_a_job_that_kills_its_process_is_quarantined_and_others_run(processes: Processes) -> None:  # noqa: F811
    processes.start("scheduler")
    poison = service.submit("test.dies", {}, priority=1)
    good = service.submit("test.lines", {"n": 5})
    for _ in range(3):
        worker = processes.start("cpu")
        worker.wait()
        wait_for(lambda: state_of(poison) in {"queued", "failed"}, "the sweep")
    assert (poison.state, poison.error_code, poison.attempts) == ("failed", "poisoned", 3)
    processes.start("cpu")
    wait_for(lambda: state_of(good) == "done", "the other job")


@pytest.mark.drill
def test_a_frozen_worker_loses_its_job_and_its_late_writes_are_refused(processes: Processes) -> None:  # noqa: F811
    """SIGSTOP beyond the time after which silence is death, another worker takes over, SIGCONT."""
    processes.start("scheduler")
    frozen = processes.start("cpu")
    job = service.submit("test.forever", {})
    wait_for(lambda: state_of(job) == "running", "the start")
    first = job.fence
    frozen.send_signal(signal.SIGSTOP)
    processes.start("cpu")
    wait_for(lambda: state_of(job) == "running" and job.fence > first, "the second worker to take over")
    owner, fence = job.owner, job.fence
    frozen.send_signal(signal.SIGCONT)
    frozen.send_signal(signal.SIGTERM)
    frozen.wait(60)
    assert (state_of(job), job.owner, job.fence) == ("running", owner, fence)
    assert job.events.filter(type__in=["done", "failed", "cancelled"]).count() == 0
    assert service.cancel(job.id).state == "cancelling"
    wait_for(lambda: state_of(job) == "cancelled", "the cancel by the second worker")
