"""A trainer among others: it makes way between steps, leaves its memory to a chat, and rests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings

from mlxplatform.broker.connections import sync_client
from mlxplatform.broker.lease import Lease, look
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import service
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.pulse import Pulse
from mlxplatform.library import local_adapters, local_models
from tests.engine.test_trainer_finetune import order
from tests.fixtures.trainer_jobs import metrics, payloads, run_to_end, stages, start, wait_until
from workers import power
from workers.host import runtime as host
from workers.host.residency import Residency, declared_bytes
from workers.power import Power
from workers.tasks import gpu_room, trainer_child

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker", "home")]

STEPS = {"steps_per_report": 1, "steps_per_save": 100_000}


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[trainer_child.Run], Any]], list[Any]]:
    """Do something once, when a step is reported; the list is filled when it was done."""
    forward = trainer_child.Run._forward

    def arrange(step: int, act: Callable[[trainer_child.Run], Any]) -> list[Any]:
        done: list[Any] = []

        def watched(run: trainer_child.Run, event: dict[str, Any]) -> None:
            reached = event.get("event") == "metric" and event.get("kind") == "train" and event["step"] == step
            forward(run, event)
            if reached and not done:
                done.append(act(run))

        monkeypatch.setattr(trainer_child.Run, "_forward", watched)
        return done

    return arrange


def each_step_once(job: Job, count: int) -> None:
    assert [point["step"] for point in metrics(job, "train")] == list(range(1, count + 1))


def test_a_run_makes_way_between_steps_and_can_be_paused_meanwhile(worker: Pulse, at_step: Any) -> None:
    job = order(iters=3000, **STEPS)
    chat = Lease(sync_client(), settings.ENV.host_id, mode="shared", cls="interactive")
    thread = start(worker)
    wait_until(lambda: metrics(job, "train"))
    assert chat.acquire(timeout=60)
    wait_until(lambda: "yielded" in stages(job))
    assert [holder["class"] for holder in look(sync_client(), settings.ENV.host_id)["holders"]] == ["interactive"]

    service.pause(job.id, "test")
    thread.join()
    job.refresh_from_db()
    assert job.state == "paused"
    chat.release()
    finished = len(metrics(job, "train"))
    service.resume(job.id, "test")
    at_step(finished + 3, lambda run: service.cancel(job.id, "test"))
    run_to_end(worker, job)

    steps = [point["step"] for point in metrics(job, "train")]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) >= finished + 3  # the pause kept its place


@pytest.mark.drill
def test_a_run_that_makes_way_publishes_only_after_that_when_asked_to_finish(
    worker: Pulse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wish comes while the child is about to make way: it must neither publish without the GPU nor be killed for waiting."""
    job = order(iters=5_000_000, **STEPS)
    chat = Lease(sync_client(), settings.ENV.host_id, mode="shared", cls="interactive")
    share, said = trainer_child.Run._share, []

    def finish_after_yield(run: trainer_child.Run, child: trainer_child.Child) -> None:
        before = run._asked_to_yield
        share(run, child)
        if run._asked_to_yield and not before and not said:
            said.append(run)
            run._ask(child, "finish")
            run._kill_at -= trainer_child.GRACE["finish"] - 1  # a second is less than the chat takes here

    monkeypatch.setattr(trainer_child.Run, "_share", finish_after_yield)
    thread = start(worker)
    wait_until(lambda: metrics(job, "train"))
    assert chat.acquire(timeout=60)
    wait_until(lambda: "yielded" in stages(job))
    thread.join(2)
    assert thread.is_alive() and local_adapters.scan(settings.HOME) == []
    chat.release()
    thread.join()

    job.refresh_from_db()
    assert (job.state, job.result and job.result["outcome"]) == ("done", "finish"), job.error


def test_a_run_leaves_its_memory_to_a_chat_and_goes_on_when_it_is_quiet(
    worker: Pulse, at_step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = local_models.find("tiny", settings.HOME)
    assert tiny is not None
    job = order(iters=60, **STEPS)
    residency = Residency(settings.ENV.host_id, 1 << 40, lambda model, left: {}, lambda: None)
    monkeypatch.setattr(host, "_runtime", type("Runtime", (), {"residency": residency})())
    monkeypatch.setattr(gpu_room, "QUIET", 0.2)
    monkeypatch.setattr(gpu_room, "LOOK", 0.05)

    def a_chat_wants_in(run: trainer_child.Run) -> Refusal:
        residency.budget = residency.used() + declared_bytes(tiny, "auto") - 1
        with pytest.raises(Refusal) as refused:
            residency.obtain(tiny)
        return refused.value

    asked = at_step(5, a_chat_wants_in)

    job = run_to_end(worker, job)

    assert job.state == "done", job.error
    assert (asked[0].status, asked[0].code) == (503, "gpu_busy") and job.id in asked[0].message
    assert any("A chat needs the memory" in payload.get("message", "") for payload in payloads(job, "stage"))
    assert "resumed" in stages(job)
    each_step_once(job, 60)
    assert job.attempts == 1 and residency.used() == 0


def test_a_run_rests_on_battery_when_asked_to(worker: Pulse, at_step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [Power(on_battery=True)]
    monkeypatch.setattr(power, "look", lambda: now[0])
    monkeypatch.setattr(trainer_child, "LOOK_AT_POWER", 0.0)
    monkeypatch.setitem(settings.ENV.values, "pause_on_battery", True)
    at_step(5, lambda run: now.insert(0, Power(on_battery=True)))
    job = order(iters=40, **STEPS)
    thread = start(worker)
    wait_until(lambda: "waiting" in stages(job))
    assert metrics(job, "train") == []

    now.insert(0, Power(on_battery=False))
    wait_until(lambda: "yielded" in stages(job))
    held = len(metrics(job, "train"))
    assert 5 <= held < 40
    now.insert(0, Power(on_battery=False))
    thread.join()

    job.refresh_from_db()
    assert job.state == "done", job.error
    each_step_once(job, 40)
    assert any("runs on battery" in payload.get("message", "") for payload in payloads(job, "stage"))


def test_two_trainings_never_run_at_once(worker: Pulse) -> None:
    first, second = order(iters=5_000_000), order(iters=1)
    threads = [start(worker), start(worker)]
    wait_until(lambda: metrics(first, "train") or metrics(second, "train"))

    second.refresh_from_db()
    assert second.state == "queued"
    service.cancel(first.id, "test")
    for thread in threads:
        thread.join()
    second.refresh_from_db()
    if second.state == "queued":
        run_to_end(worker, second)
    assert second.state == "done", second.error


def test_a_run_that_can_never_fit_is_refused_with_both_numbers_before_anything_starts(
    worker: Pulse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(settings.ENV.values, "memory_budget_mb", 1)
    begun: list[Any] = []
    monkeypatch.setattr(trainer_child.Child, "__init__", lambda child, task: begun.append(task))

    job = run_to_end(worker, order(iters=1, batch_size=8))

    assert (job.state, job.error_code, job.attempts, begun) == ("failed", "memory_admission", 1, [])
    assert job.error.count("GiB") == 2
