"""Rows from question to answer: the pool, real chunk messages through a real broker, and the actor's loop.

The engine is replaced by one whose answers and failures the test writes down; everything else is what runs in
service.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import redis
from django.db import InterfaceError, OperationalError, connections

from mlxplatform.accounts import usage
from mlxplatform.accounts.models import UsageDay
from mlxplatform.broker import queues
from mlxplatform.inference import placement
from mlxplatform.inference.contract import (
    Admitted,
    Event,
    Failed,
    InferenceRequest,
    Message,
    Refusal,
    decode_request,
)
from mlxplatform.inference.models import Host
from mlxplatform.jobs.context import JobCancelled, JobReleased, OwnershipLost
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.moves import MoveRefused
from mlxplatform.rows import chunks, sweep
from mlxplatform.rows.contract import RowRequest, RowResult
from mlxplatform.rows.models import RowCall, RowChunk
from mlxplatform.rows.pool import RowPool
from mlxplatform.rows.run import run_rows
from tests.fixtures.scripted_host import ScriptedRuntime, echo, runtime
from workers.tasks import row_pulse
from workers.tasks import rows as actor

__all__ = ["runtime"]

pytestmark = pytest.mark.django_db(transaction=True)

JOB = "job_00000000000000aa"


class Context:
    """A job context reduced to what rows use."""

    job_id = JOB

    def __init__(self) -> None:
        self.stop: Exception | None = None

    def check(self) -> None:
        if self.stop is not None:
            raise self.stop


def calls(count: int, prefix: str = "q") -> list[RowRequest]:
    return [
        RowRequest(f"{n}:a", n, InferenceRequest(id="", model="tiny", messages=[Message("user", f"{prefix}{n}")]))
        for n in range(count)
    ]


async def collect(ctx: Context, wanted: list[RowRequest], **options: object) -> list[RowResult]:
    return [result async for result in run_rows(ctx, wanted, **options)]  # type: ignore[arg-type]


def run(wanted: list[RowRequest], ctx: Context | None = None, **options: object) -> list[RowResult]:
    return asyncio.run(asyncio.wait_for(collect(ctx or Context(), wanted, **options), 60))


def test_every_call_is_answered_once(runtime: ScriptedRuntime) -> None:
    results = run(calls(150))
    assert {r.key: r.output.text for r in results if r.output} == {f"{n}:a": f"re: q{n}" for n in range(150)}
    assert set(runtime.started.values()) == {1}
    assert RowChunk.objects.exclude(state="done").count() == 0


def test_answers_are_counted_for_the_key_that_ordered_the_job(runtime: ScriptedRuntime, broker: redis.Redis) -> None:
    Job.objects.create(id=JOB, kind="batch", queue="cpu", project="blue", created_by="key:key_b")
    usage.flush()
    UsageDay.objects.all().delete()
    runtime.script["q1"] = lambda number: [Admitted(3, "tiny"), Failed("engine_failed", "It failed.", 500)]
    run(calls(5))
    run(calls(5))  # answers that are there already cost nothing
    usage.flush()
    day = UsageDay.objects.get()
    assert (day.project, day.key_id, day.model) == ("blue", "key_b", "tiny")
    assert (day.requests, day.prompt_tokens, day.completion_tokens) == (4, 12, 8)
    [spent] = [int(broker.get(name) or 0) for name in broker.keys("mlxp:quota:tpd:key_b:*")]
    assert spent == 20


def test_a_second_run_answers_from_what_was_kept(runtime: ScriptedRuntime) -> None:
    run(calls(40))
    again = run(calls(45))
    assert sum(result.reused for result in again) == 40
    assert set(runtime.started.values()) == {1}


def test_one_bad_row_does_not_stop_the_others(runtime: ScriptedRuntime) -> None:
    runtime.script["q1"] = lambda number: [Admitted(3, "tiny"), Failed("engine_failed", "It failed.", 500)]
    runtime.refuse = lambda text, number: Refusal(400, "context_length_exceeded", "Too long.") if text == "q2" else None
    by_key = {result.key: result for result in run(calls(5))}
    assert by_key["1:a"].error is not None and by_key["1:a"].error.code == "engine_failed"
    assert by_key["2:a"].error is not None and by_key["2:a"].error.status == 400
    assert all(by_key[f"{n}:a"].output for n in (0, 3, 4))


def test_an_engine_that_died_under_a_row_gets_it_again(runtime: ScriptedRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor, "RESTART_SECONDS", 0.01)
    down = [Admitted(3, "tiny"), Failed("engine_unavailable", "Gone.", 503)]
    runtime.script["q0"] = lambda number: down if number < 3 else echo("q0")
    [result] = run(calls(1))
    assert result.output is not None and runtime.started["q0"] == 3


def test_a_host_that_takes_nothing_gets_its_chunk_later(runtime: ScriptedRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor, "GIVE_BACK_SECONDS", 0.0)
    runtime.refuse = lambda text, number: Refusal(503, "engine_unavailable", "Loading.") if number == 1 else None
    given_back = threading.Event()

    def sweeper() -> None:
        while not given_back.wait(0.05):
            sweep.Sweeper().sweep()

    thread = threading.Thread(target=sweeper)
    thread.start()
    try:
        results = run(calls(3))
    finally:
        given_back.set()
        thread.join()
    assert all(result.output for result in results)
    assert RowChunk.objects.get().fence > 1


def test_a_chunk_whose_prompts_take_long_to_prepare_beats_in_between(
    runtime: ScriptedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: list[int] = []
    commit, started = chunks.commit, runtime.start

    def slow(request: InferenceRequest, sink: Callable[[list[Event]], None]) -> object:
        clock[0] += 2.0
        return started(request, sink)

    def seen(*arguments: Any, **options: Any) -> bool:
        beats.append(sum(runtime.started.values()))
        return commit(*arguments, **options)

    clock = [0.0]
    monkeypatch.setattr(actor, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(runtime, "start", slow)
    monkeypatch.setattr(chunks, "commit", seen)
    assert len(run(calls(6))) == 6
    assert any(beat < 6 for beat in beats)


def test_cancelling_the_job_stops_its_rows_and_keeps_finished_ones(runtime: ScriptedRuntime) -> None:
    runtime.script["q3"] = lambda number: None
    ctx = Context()

    async def until_held() -> None:
        finished = []
        with pytest.raises(JobCancelled):
            async for result in run_rows(ctx, calls(4)):
                finished.append(result.key)
                if len(finished) == 3:
                    ctx.stop = JobCancelled(JOB)

    asyncio.run(asyncio.wait_for(until_held(), 30))
    assert RowChunk.objects.get().state == "cancelled"
    assert sorted(RowCall.objects.filter(state="done").values_list("key", flat=True)) == ["0:a", "1:a", "2:a"]
    wait_until(lambda: runtime.cancelled == ["q3"])


@pytest.mark.parametrize(
    "lost",
    [OwnershipLost(JOB), MoveRefused(JOB, "held by somebody else"), JobReleased(JOB), OperationalError("away"), InterfaceError()],
)
def test_who_has_lost_the_job_leaves_its_chunks_to_the_new_owner(runtime: ScriptedRuntime, lost: Exception) -> None:
    runtime.script["q0"] = lambda number: None
    ctx = Context()

    async def until_lost() -> None:
        async with RowPool(ctx) as pool:
            asked = asyncio.create_task(pool.call(calls(1)[0]))
            assert await asyncio.to_thread(runtime.held.wait, 20)
            ctx.stop = lost
            await asked

    with pytest.raises(type(lost)):
        asyncio.run(asyncio.wait_for(until_lost(), 30))
    assert RowChunk.objects.get().state == "running"
    RowChunk.objects.update(state="cancelled")  # lets the actor's thread go


def test_calls_that_follow_from_answers_run_side_by_side(runtime: ScriptedRuntime) -> None:
    """Two steps a row, as templates do it."""

    async def conversation(pool: RowPool, number: int) -> str:
        first = await pool.call(RowRequest(f"{number}:1", number, request(f"a{number}")))
        assert first.output is not None
        second = await pool.call(RowRequest(f"{number}:2", number, request(first.output.text)))
        assert second.output is not None
        return second.output.text

    def request(text: str) -> InferenceRequest:
        return InferenceRequest(id="", model="tiny", messages=[Message("user", text)])

    async def main() -> list[str]:
        async with RowPool(Context()) as pool:
            return await asyncio.gather(*(conversation(pool, number) for number in range(60)))

    assert asyncio.run(asyncio.wait_for(main(), 60)) == [f"re: re: a{number}" for number in range(60)]
    assert RowChunk.objects.count() < 60


def test_a_wiped_broker_loses_nothing(runtime: ScriptedRuntime, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "SENDING_GRACE", 0)
    monkeypatch.setattr("mlxplatform.rows.pool.send", lambda sendings: broker.flushall())
    stop = threading.Event()

    def sweeper() -> None:
        while not stop.wait(0.05):
            sweep.Sweeper().sweep()

    thread = threading.Thread(target=sweeper)
    thread.start()
    try:
        results = run(calls(10))
    finally:
        stop.set()
        thread.join()
    assert len(results) == 10 and all(result.output for result in results)
    assert set(runtime.started.values()) == {1}


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(200):
        if condition():
            return
        threading.Event().wait(0.05)
    raise AssertionError("the condition did not come true")


def test_calls_of_several_models_go_to_hosts_that_have_them(runtime: ScriptedRuntime, broker: redis.Redis) -> None:
    broker.set(queues.host_key("local"), host_state("local", "tiny"))
    broker.set(queues.host_key("other"), host_state("other", "second"))
    Host.objects.create(name="other")
    placement.forget()
    mixed = [msgspec.structs.replace(row, request=msgspec.structs.replace(row.request, model="second")) for row in calls(4)[2:]]

    async def ask() -> dict[str, set[str]]:
        async with RowPool(Context()) as pool:
            for row in [*calls(2), *mixed]:
                pool.ask(row, lambda result: None)
            while await asyncio.to_thread(RowCall.objects.exclude(chunk=None).count) < 4:
                await asyncio.sleep(0.01)
            return await asyncio.to_thread(hosts_of_models)

    assert asyncio.run(asyncio.wait_for(ask(), 30)) == {"tiny": {"local"}, "second": {"other"}}


def host_state(name: str, model: str) -> str:
    entry = {"id": model, "kind": "chat", "capabilities": ["chat"], "resident": True}
    return json.dumps({"host": name, "models": [entry], "engine": {"state": "ready"}})


def hosts_of_models() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for request, host in RowCall.objects.values_list("request", "chunk__host"):
        found.setdefault(decode_request(bytes(request)).model, set()).add(host)
    connections.close_all()
    return found


def test_preparation_that_takes_long_is_not_the_owners_death(runtime: ScriptedRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_pulse, "CHECK_SECONDS", 0.01)
    preparing, prepared = threading.Event(), threading.Event()

    def slowly(text: str, number: int) -> None:
        preparing.set()
        assert prepared.wait(30)

    runtime.refuse = slowly
    now = [0.0]
    sweeper = sweep.Sweeper(lambda: now[0])

    def watch() -> None:
        assert preparing.wait(30)
        for _ in range(10):
            before = RowChunk.objects.get().heartbeat_at
            wait_until(lambda before=before: RowChunk.objects.get().heartbeat_at != before)  # type: ignore[misc]
            now[0] += sweep.LOOK_MOST
            sweeper.sweep()
        prepared.set()
        connections.close_all()

    thread = threading.Thread(target=watch)
    thread.start()
    (result,) = run(calls(1))
    thread.join()
    assert result.output is not None
    assert (RowChunk.objects.get().fence, runtime.started["q0"]) == (1, 1)


def test_results_wait_for_a_database_that_is_away(runtime: ScriptedRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor, "COMMIT_RETRY_SECONDS", 0.01)
    failures, real = [], chunks.commit

    def commit(*arguments: Any, **options: Any) -> bool:
        if len(failures) < 5:
            failures.append(1)
            raise OperationalError("database or disk is full")
        return real(*arguments, **options)

    monkeypatch.setattr(chunks, "commit", commit)
    results = run(calls(40))
    assert len(results) == 40 and all(result.output for result in results)
    assert set(runtime.started.values()) == {1}
    assert set(RowChunk.objects.values_list("state", "fence", "deaths")) == {("done", 1, 0)}
