"""The move table: what may change into what, and that row and log never disagree."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlxplatform.jobs import moves
from mlxplatform.jobs.models import Job, JobEvent
from mlxplatform.jobs.moves import Holder, MoveRefused, NewEvent
from mlxplatform.jobs.states import EVENT_OF, LIVE, MOVES, STATES, TERMINAL

pytestmark = [pytest.mark.django_db]


def make(state: str = "queued", **fields: object) -> Job:
    return Job.objects.create(kind="test.none", queue="cpu", state=state, **fields)


@pytest.mark.parametrize(("start", "to"), itertools.product(STATES, STATES))
def test_only_moves_of_the_table_are_made(start: str, to: str) -> None:
    job = make(start)
    if to in MOVES[start]:
        assert moves.move(job.id, to).state == to
        assert job.events.get().type == EVENT_OF.get(to, "state")
    else:
        with pytest.raises(MoveRefused):
            moves.move(job.id, to)
        job.refresh_from_db()
        assert job.state == start
        assert not job.events.exists()


def test_ended_jobs_only_leave_by_retry() -> None:
    assert {state: MOVES[state] for state in TERMINAL} == {
        "done": frozenset(),
        "failed": frozenset({"queued"}),
        "cancelled": frozenset({"queued"}),
    }


def test_a_stale_holder_writes_nothing() -> None:
    job = make("running", owner="w1", fence=4)
    for holder in (Holder("w2", 4), Holder("w1", 3), Holder("w1", 5)):
        with pytest.raises(MoveRefused):
            moves.move(job.id, "done", holder=holder, events=[NewEvent("log", {"line": "late"})])
        with pytest.raises(MoveRefused):
            moves.append(job.id, holder, [NewEvent("log", {"line": "late"})], progress=0.5)
    job.refresh_from_db()
    assert (job.state, job.progress, job.last_seq) == ("running", 0.0, 0)


def test_an_owner_appends_only_while_the_job_lives() -> None:
    for state in STATES:
        job = make(state, owner="w", fence=1)
        if state in LIVE:
            moves.append(job.id, Holder("w", 1), [NewEvent("log")])
        else:
            with pytest.raises(MoveRefused):
                moves.append(job.id, Holder("w", 1), [NewEvent("log")])


def test_buffered_events_come_before_the_terminal_one_in_one_transaction() -> None:
    job = make("running", owner="w", fence=1)
    moves.move(
        job.id, "done", holder=Holder("w", 1), events=[NewEvent("log", {"line": str(i)}) for i in range(3)], result={"a": 1}
    )
    assert list(job.events.values_list("seq", "type")) == [(1, "log"), (2, "log"), (3, "log"), (4, "done")]
    job.refresh_from_db()
    assert (job.last_seq, job.progress, job.owner) == (4, 1.0, "")
    assert job.ended_at is not None


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.sampled_from(STATES), st.integers(0, 5)), max_size=25))
def test_numbers_have_no_gaps_whatever_happens(script: list[str | int]) -> None:
    """Any mix of legal and illegal moves and appended batches leaves seq 1..last_seq and a log that ends in the row's state."""
    job = make()
    for step in script:
        try:
            if isinstance(step, int):
                moves.append(job.id, Holder("", 0), [NewEvent("log", {"line": "x"})] * step)
            else:
                moves.move(job.id, step)
        except MoveRefused:
            continue
    job.refresh_from_db()
    assert list(JobEvent.objects.filter(job=job).order_by("seq").values_list("seq", flat=True)) == list(
        range(1, job.last_seq + 1)
    )
    last_move = JobEvent.objects.filter(job=job).exclude(type="log").order_by("-seq").first()
    assert last_move is None or last_move.payload["state"] == job.state
