"""The scheduler's sweep over jobs: who is dead, what was lost, what is late; no clock and no hook stops it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator

import pytest
import redis
from django.utils import timezone

from mlxplatform.jobs import moves, service
from mlxplatform.jobs.models import Job, Worker
from mlxplatform.jobs.pulse import Pulse
from mlxplatform.jobs.sweep import OWNER_TTL, Sweeper
from tests.fixtures import job_kinds

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker")]


@pytest.fixture(scope="module", autouse=True)
def _kinds() -> None:
    job_kinds.register()


@pytest.fixture
def pulse() -> Iterator[Pulse]:
    one = Pulse("cpu")
    one.register()
    yield one
    one.drain()


def state_of(job: Job) -> str:
    job.refresh_from_db()
    return job.state


class Clocks:
    """The sweeper's steady clock and the wall clock, moved by the test."""

    def __init__(self) -> None:
        self.now, self.wall = 1000.0, 5000.0

    def sweeper(self) -> Sweeper:
        return Sweeper(lambda: self.now, lambda: self.wall)

    def pass_by(self, seconds: float, look: Callable[[], list[str]]) -> list[str]:
        """Let time pass with a look each second; the last look's answer."""
        dead: list[str] = []
        for _ in range(int(seconds)):
            self.now += 1
            self.wall += 1
            dead = look()
        return dead


def test_silent_owners_die_by_standing_still_not_by_wall_clock(pulse: Pulse) -> None:
    clocks = Clocks()
    sweeper = clocks.sweeper()
    Worker.objects.filter(pk=pulse.worker_id).update(heartbeat_at=timezone.now() - dt.timedelta(days=400))
    assert clocks.pass_by(OWNER_TTL - 1, sweeper.dead_workers) == []
    pulse.tick(beat=True)
    assert clocks.pass_by(OWNER_TTL, sweeper.dead_workers) == []
    assert clocks.pass_by(2, sweeper.dead_workers) == [pulse.worker_id]


def test_a_scheduler_that_was_stopped_declares_nobody_dead_when_it_wakes(pulse: Pulse) -> None:
    clocks = Clocks()
    sweeper = clocks.sweeper()
    assert clocks.pass_by(2, sweeper.dead_workers) == []
    clocks.now += 3600
    assert sweeper.dead_workers() == []


def test_a_clock_set_back_delays_nothing_that_was_due(pulse: Pulse) -> None:
    clocks = Clocks()
    sweeper = clocks.sweeper()
    due, later = (service.submit("test.lines", {"n": n}) for n in range(2))
    Job.objects.filter(pk=due.id).update(due_at=timezone.now() + dt.timedelta(minutes=50))  # as seen after the setting
    Job.objects.filter(pk=later.id).update(due_at=timezone.now() + dt.timedelta(hours=3))
    clocks.now += 1
    clocks.wall += 1
    sweeper.sweep()
    assert moves.claim("cpu", "w") is None
    clocks.now += 1
    clocks.wall += 1 - 3600
    sweeper.sweep()
    claimed = moves.claim("cpu", "w")
    assert claimed is not None and claimed.id == due.id
    assert moves.claim("cpu", "w") is None


def test_a_hook_that_raises_stops_no_other_job(pulse: Pulse, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks()
    sweeper = clocks.sweeper()
    broken, calls = service.submit("test.forever", {}), []
    late = service.submit("test.lines", {"n": 1}, deadline_at=timezone.now() - dt.timedelta(seconds=1))
    moves.claim("cpu", "gone")
    service.cancel(broken.id)

    def raises(job: Job) -> None:
        calls.append(job.id)
        if job.id == broken.id:
            raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(job_kinds, "note_end", raises)
        sweeper.sweep()
        assert (state_of(broken), state_of(late)) == ("cancelling", "failed")
        sweeper.sweep()
        assert calls.count(broken.id) == 1, "tried again at once"
        clocks.now += 2
        sweeper.sweep()
        assert calls.count(broken.id) == 2
    clocks.now += 5
    sweeper.sweep()
    assert state_of(broken) == "cancelled"


def test_deaths_without_progress_end_in_quarantine(pulse: Pulse) -> None:
    job, sweeper = service.submit("test.dies", {}), Sweeper()
    for death in (1, 2, 3):
        assert moves.claim("cpu", f"gone-{death}").id == job.id
        sweeper.sweep()
        assert state_of(job) == ("failed" if death == 3 else "queued")
    assert (job.error_code, job.attempts, job.deaths) == ("poisoned", 3, 3)
    assert service.retry(job.id, "me").state == "queued"


def test_deaths_with_progress_start_the_count_again(pulse: Pulse) -> None:
    job, sweeper = service.submit("test.dies", {}), Sweeper()
    for death in range(1, 6):
        claimed = moves.claim("cpu", f"gone-{death}")
        moves.append(job.id, moves.Holder(claimed.owner, claimed.fence), [], progress=death / 10)
        sweeper.sweep()
        assert state_of(job) == "queued"
        assert job.deaths == 1


def test_a_cancelled_job_whose_owner_dies_stays_cancelled(pulse: Pulse) -> None:
    job = service.submit("test.forever", {})
    moves.claim("cpu", "gone")
    service.cancel(job.id)
    Sweeper().sweep()
    assert state_of(job) == "cancelled"


def test_a_wiped_broker_loses_no_job(pulse: Pulse, broker: redis.Redis) -> None:
    jobs = [service.submit("test.lines", {"n": n}) for n in range(3)]
    broker.flushall()
    Sweeper().sweep()
    assert broker.llen("dramatiq:cpu") == 3
    Sweeper().sweep()
    assert broker.llen("dramatiq:cpu") == 3
    assert {job.id for job in jobs} == set(Job.objects.filter(enqueued_at__isnull=False).values_list("id", flat=True))


def test_a_broker_that_is_down_keeps_the_submission(pulse: Pulse, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: object) -> None:
        raise redis.ConnectionError("down")

    with monkeypatch.context() as patch:
        patch.setattr("mlxplatform.jobs.wake.enqueue", down)
        job = service.submit("test.lines", {"n": 1})
        Sweeper().sweep()
    assert state_of(job) == "queued"
    assert job.enqueued_at is None
    Sweeper().sweep()
    assert state_of(job) == "queued"
    assert job.enqueued_at is not None


def test_deadline_fails_what_has_not_begun(pulse: Pulse) -> None:
    job = service.submit("test.lines", {"n": 1}, deadline_at=timezone.now() - dt.timedelta(seconds=1))
    Sweeper().sweep()
    assert (state_of(job), job.error_code) == ("failed", "deadline_exceeded")
