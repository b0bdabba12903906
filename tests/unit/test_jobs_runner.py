"""One worker, one thread: what each way of ending an attempt leaves in SQL. The pulse is ticked by hand."""

from __future__ import annotations

import datetime as dt
import errno
import threading
from collections.abc import Iterator

import pytest
from django.db import OperationalError
from django.utils import timezone

from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import moves, service
from mlxplatform.jobs.context import BUFFER_LIMIT, JobCancelled, JobContext, JobFailed, OwnershipLost
from mlxplatform.jobs.models import Job, QueuePause, Worker
from mlxplatform.jobs.pulse import STRAY_BEATS, Pulse
from mlxplatform.jobs.runner import run_next
from mlxplatform.jobs.sweep import Sweeper
from tests.fixtures import job_kinds
from tests.fixtures.job_processes import wait_for

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


def in_thread(pulse: Pulse) -> threading.Thread:
    thread = threading.Thread(target=run_next, args=(pulse,))
    thread.start()
    return thread


def tick_until_ended(pulse: Pulse, thread: threading.Thread) -> None:
    """More than one tick: the job is running in SQL a moment before its thread listens."""
    while thread.is_alive():
        pulse.tick(beat=False)
        thread.join(0.02)


def state_of(job: Job) -> str:
    job.refresh_from_db()
    return job.state


def test_a_job_runs_to_done_with_numbered_events(pulse: Pulse) -> None:
    job = service.submit("test.lines", {"n": 3})
    assert run_next(pulse)
    assert state_of(job) == "done"
    assert (job.result, job.attempts, job.owner) == ({"n": 3}, 1, "")
    assert list(job.events.values_list("seq", "type")) == [
        (1, "state"), (2, "started"), (3, "log"), (4, "log"), (5, "log"), (6, "stage"), (7, "done"),
    ]  # fmt: skip
    assert (job.id, "done") in job_kinds.ended


def test_an_explained_failure_is_final_and_shown(pulse: Pulse) -> None:
    job = service.submit("test.explains", {})
    run_next(pulse)
    assert state_of(job) == "failed"
    assert (job.error_code, job.attempts) == ("no_rows", 1)


def test_a_crash_is_retried_with_backoff_then_fails_without_leaking(pulse: Pulse) -> None:
    job = service.submit("test.crashes", {})
    run_next(pulse)
    assert state_of(job) == "queued"
    assert job.due_at > job.started_at
    Job.objects.filter(pk=job.id).update(due_at=timezone.now())
    run_next(pulse)
    assert state_of(job) == "failed"
    assert job.attempts == 2
    assert job.error_code == "internal_error"
    assert "/secret" not in job.error + job.message
    assert "ValueError" not in job.error + job.message


def test_cancel_before_start_ends_at_once_and_never_runs(pulse: Pulse) -> None:
    job = service.submit("test.lines", {"n": 1})
    delayed = service.submit("test.lines", {"n": 2}, due_at=timezone.now() + dt.timedelta(hours=1))
    for one in (job, delayed):
        assert service.cancel(one.id, "me").state == "cancelled"
        assert service.cancel(one.id, "me").state == "cancelled"
        assert one.events.last().type == "cancelled"
    assert not run_next(pulse)
    assert (job.id, "cancelled") in job_kinds.ended


def test_cancel_while_running_reaches_the_runner(pulse: Pulse) -> None:
    job = service.submit("test.forever", {})
    thread = in_thread(pulse)
    wait_for(lambda: state_of(job) == "running")
    assert service.cancel(job.id).state == "cancelling"
    tick_until_ended(pulse, thread)
    assert state_of(job) == "cancelled"
    assert job.events.last().type == "cancelled"


def test_pause_while_running_and_resume(pulse: Pulse) -> None:
    job = service.submit("test.forever", {})
    thread = in_thread(pulse)
    wait_for(lambda: state_of(job) == "running")
    service.pause(job.id)
    tick_until_ended(pulse, thread)
    assert (state_of(job), job.attempts) == ("paused", 0)
    assert not run_next(pulse)
    assert service.resume(job.id).state == "queued"


def test_a_kind_that_cannot_pause_says_so(pulse: Pulse) -> None:
    job = service.submit("test.one", {})
    in_thread(pulse)
    wait_for(lambda: state_of(job) == "running")
    with pytest.raises(Refusal, match="cannot be paused"):
        service.pause(job.id)


def test_a_worker_that_shuts_down_gives_its_job_back(pulse: Pulse) -> None:
    job = service.submit("test.forever", {})
    thread = in_thread(pulse)
    wait_for(lambda: state_of(job) == "running")
    pulse.drain()
    thread.join()
    assert state_of(job) == "queued"
    assert (job.attempts, job.deaths, job.owner) == (0, 0, "")
    assert not run_next(pulse)


def test_priority_then_age_decide_not_the_message(pulse: Pulse) -> None:
    old = service.submit("test.lines", {"n": 1})
    urgent = service.submit("test.lines", {"n": 2}, priority=5)
    run_next(pulse)
    assert (state_of(urgent), state_of(old)) == ("done", "queued")


def test_concurrency_limit_and_queue_pause_hold_jobs_back(pulse: Pulse) -> None:
    first, second = service.submit("test.one", {"a": 1}), service.submit("test.one", {"a": 2})
    in_thread(pulse)
    wait_for(lambda: state_of(first) == "running")
    assert not run_next(pulse)
    free = service.submit("test.lines", {"n": 1})
    QueuePause.objects.create(queue="cpu")
    assert not run_next(pulse)
    QueuePause.objects.all().delete()
    assert run_next(pulse)
    assert (state_of(free), state_of(second)) == ("done", "queued")


def test_jobs_of_one_lane_run_one_at_a_time(pulse: Pulse) -> None:
    first, second = (service.submit("test.forever", {"n": n}, lane="model:tiny") for n in range(2))
    other = service.submit("test.lines", {"n": 1}, lane="model:other")
    in_thread(pulse)
    wait_for(lambda: state_of(first) == "running")
    assert run_next(pulse)
    assert (state_of(other), state_of(second)) == ("done", "queued")
    assert not run_next(pulse)


def test_idempotency_key_returns_the_first_job_and_refuses_other_work(pulse: Pulse) -> None:
    first = service.submit("test.lines", {"n": 1}, idempotency_key="k")
    assert service.submit("test.lines", {"n": 1}, idempotency_key="k").id == first.id
    assert service.submit("test.lines", {"n": 1}, idempotency_key="k", project="other").id != first.id
    with pytest.raises(Refusal) as refused:
        service.submit("test.lines", {"n": 2}, idempotency_key="k")
    assert (refused.value.status, refused.value.code) == (400, "idempotency_conflict")


def test_dependents_wait_then_start_or_fail(pulse: Pulse) -> None:
    good, bad = service.submit("test.lines", {"n": 1}), service.submit("test.explains", {})
    then, never = (service.submit("test.lines", {"n": 9}, after=[one.id]) for one in (good, bad))
    assert (then.state, never.state) == ("waiting", "waiting")
    run_next(pulse)
    run_next(pulse)
    assert (state_of(then), state_of(never)) == ("queued", "failed")
    assert never.error_code == "dependency_failed"


def test_a_holder_that_lost_its_job_stops_and_writes_nothing(pulse: Pulse) -> None:
    job = service.submit("test.forever", {})
    thread = in_thread(pulse)
    wait_for(lambda: state_of(job) == "running")
    moves.move(job.id, "zombie", fence=job.fence + 1, owner="")
    moves.move(job.id, "queued")
    tick_until_ended(pulse, thread)
    assert state_of(job) == "queued"
    assert "cancelled" not in job.events.values_list("type", flat=True)


def test_values_json_cannot_say_do_not_keep_a_job_from_ending(pulse: Pulse) -> None:
    job = service.submit("test.babbles", {})
    run_next(pulse)
    assert state_of(job) == "done"
    assert job.result["loss"] is None
    metric, line = (job.events.get(type=kind).payload for kind in ("metric", "log"))
    assert (metric["loss"], metric["best"]) == (None, None)
    assert line["line"] == "nul \ufffd and half ? a pair"


def test_a_job_whose_end_could_not_be_written_is_given_up(pulse: Pulse) -> None:
    job, cancelled = service.submit("test.forever", {"a": 1}), service.submit("test.forever", {"a": 2})
    for _ in range(2):
        moves.claim("cpu", pulse.worker_id)
    service.cancel(cancelled.id)
    for _ in range(STRAY_BEATS - 1):
        pulse.tick(beat=True)
    assert (state_of(job), state_of(cancelled)) == ("running", "cancelling")
    pulse.tick(beat=True)
    assert (state_of(job), state_of(cancelled)) == ("zombie", "cancelled")
    Sweeper().sweep()
    assert state_of(job) == "queued"


def test_one_jobs_unwritable_events_do_not_stop_the_beat(pulse: Pulse, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(*_: object, **__: object) -> None:
        raise OperationalError("database is locked")

    context = JobContext(Job(id="job_x", owner=pulse.worker_id, fence=1))
    pulse.add(context)
    context.log("kept")
    with monkeypatch.context() as patch:
        patch.setattr(moves, "append", locked)
        pulse.tick(beat=True)
    assert Worker.objects.get(pk=pulse.worker_id).beats == 1
    assert [event.payload["line"] for event in context.take()[0]] == ["kept"]


def test_a_job_given_to_the_same_worker_again_is_kept_apart_from_its_lost_attempt(pulse: Pulse) -> None:
    job = service.submit("test.forever", {})
    first = moves.claim("cpu", pulse.worker_id)
    assert first is not None
    lost = JobContext(first)
    pulse.add(lost)
    moves.move(job.id, "zombie", fence=first.fence + 1, owner="")  # the process slept and was taken for dead
    moves.move(job.id, "queued")
    second = moves.claim("cpu", pulse.worker_id)
    assert second is not None
    kept = JobContext(second)
    pulse.add(kept)
    pulse.tick(beat=True)
    with pytest.raises(OwnershipLost):
        lost.check()
    pulse.remove(lost)
    service.cancel(job.id)
    pulse.tick(beat=True)
    with pytest.raises(JobCancelled):
        kept.check()


def test_a_stray_that_ends_just_now_does_not_stop_the_pulse(pulse: Pulse) -> None:
    job = service.submit("test.forever", {})
    claimed = moves.claim("cpu", pulse.worker_id)
    assert claimed is not None
    pulse._strays = {(job.id, claimed.fence): STRAY_BEATS - 1}
    moves.move(job.id, "done", holder=moves.Holder(pulse.worker_id, claimed.fence))
    pulse._drop_strays({(job.id, claimed.fence)}, set())
    assert state_of(job) == "done"


def test_the_beat_outlives_a_defect_in_one_tick(pulse: Pulse, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = 0

    def broken(*, beat: bool) -> None:
        nonlocal ticks
        ticks += 1
        raise ZeroDivisionError

    monkeypatch.setattr("mlxplatform.jobs.pulse.INTERVAL", 0.001)
    monkeypatch.setattr(pulse, "tick", broken)
    pulse.start()
    wait_for(lambda: ticks > 2)
    pulse.end()


@pytest.mark.parametrize(
    "error",
    [OperationalError("database is locked"), OSError(errno.ENOSPC, "No space left"), Refusal(507, "disk_full", "No space.")],
)
def test_trouble_around_a_job_costs_it_no_attempt(pulse: Pulse, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    job = service.submit("test.lines", {"n": 1})

    def troubled(ctx: JobContext) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(job_kinds, "lines", troubled)
        for _ in range(job.max_attempts + 2):
            Job.objects.update(due_at=timezone.now())
            assert run_next(pulse)
            assert (state_of(job), job.attempts, job.error) == ("queued", 0, "")
            assert job.due_at > timezone.now()
            assert "trying again" in job.message
    Job.objects.update(due_at=timezone.now())
    assert run_next(pulse)
    assert state_of(job) == "done"


def test_a_failure_that_may_pass_ends_a_job_only_in_a_row_without_progress(pulse: Pulse, monkeypatch: pytest.MonkeyPatch) -> None:
    job = service.submit("test.lines", {"n": 1})

    def gets(progress: float) -> None:
        def interrupted(ctx: JobContext) -> None:
            ctx.stage("begun", 0.0)
            ctx.stage("going", progress)
            raise JobFailed("cut", "The line was cut.", retry=True, param="model")

        monkeypatch.setattr(job_kinds, "lines", interrupted)
        Job.objects.update(due_at=timezone.now())
        assert run_next(pulse)

    for number in range(1, 6):
        gets(number / 10)
        assert (state_of(job), job.deaths, job.attempts) == ("queued", 1, number)
    gets(0.1)
    assert (state_of(job), job.deaths) == ("queued", 2) and job.message.startswith("The line was cut; trying again in")
    gets(0.1)
    assert (state_of(job), job.error_code) == ("failed", "cut")
    assert job.events.last().payload == {"state": "failed", "error": "The line was cut.", "code": "cut", "param": "model"}


def test_a_runner_that_logs_faster_than_it_is_written_waits(pulse: Pulse) -> None:
    context = JobContext(Job(id="job_x", owner="w", fence=1))
    thread = threading.Thread(target=lambda: [context.log("x") for _ in range(BUFFER_LIMIT + 1)])
    thread.start()
    wait_for(lambda: len(context._events) == BUFFER_LIMIT)
    assert thread.is_alive()
    assert len(context.take()[0]) == BUFFER_LIMIT
    thread.join()


def test_lost_ownership_beats_an_earlier_reason_to_stop() -> None:
    context = JobContext(Job(id="job_x"))
    context.stop(JobCancelled)
    context.stop(OwnershipLost)
    with pytest.raises(OwnershipLost):
        context.check()
