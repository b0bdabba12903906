"""The orchestrator of a batch by itself: what it does while no host is alive, and with a line that meets a defect."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
import redis

from mlxplatform.batches import answering, results, run
from mlxplatform.batches.models import CANCELLED, CANCELLING, Batch
from mlxplatform.batches.service import create
from mlxplatform.broker import queues
from mlxplatform.files import service as files
from mlxplatform.inference import placement
from mlxplatform.jobs import service as jobs
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.pulse import Pulse
from mlxplatform.jobs.runner import run_next
from tests.fixtures.scripted_host import ScriptedRuntime, runtime

__all__ = ["runtime"]

pytestmark = pytest.mark.django_db(transaction=True)

CHAT = "/v1/chat/completions"


def make(*texts: str) -> Batch:
    body = {"model": "tiny", "max_tokens": 4}
    lines = [
        {"custom_id": text, "method": "POST", "url": CHAT, "body": {**body, "messages": [{"role": "user", "content": text}]}}
        for text in texts
    ]
    file = files.store([(json.dumps(line) + "\n").encode() for line in lines], "a.jsonl", "batch")
    return create("openai", CHAT, file, project="default", created_by="local")


def work(until: set[str]) -> Job:
    """Run the batch's job on a worker of our own, its pulse ticking, until it is in one of these states."""
    pulse = Pulse("cpu")
    pulse.register()
    thread = threading.Thread(target=run_next, args=(pulse,))
    thread.start()
    while thread.is_alive():
        pulse.tick(beat=False)
        thread.join(0.02)
    job = Job.objects.get(kind="batch")
    assert job.state in until, (job.state, job.error)
    return job


def test_a_batch_that_waits_for_a_host_can_be_cancelled(broker: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    placement.forget()
    batch = make("a", "b")

    def waiting(_: object, stage: str, *rest: object, **more: object) -> None:
        if stage == "waiting":
            threading.Thread(target=jobs.cancel, args=(batch.job_id,)).start()

    monkeypatch.setattr("mlxplatform.jobs.context.JobContext.stage", waiting)
    monkeypatch.setattr(run, "HOST_WAIT_S", 0.05)
    monkeypatch.setattr(run, "TELL_S", 0.0)
    assert work({"cancelled"}).error == ""
    assert not broker.exists(queues.host_key("local"))


def test_a_defect_met_by_one_line_costs_that_line(runtime: ScriptedRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    parse, outcome = answering.parse, answering.outcome

    def parses(protocol: answering.LineProtocol, line: answering.BatchLineIn) -> answering.ParsedLine:
        if line.custom_id == "unread":
            raise ZeroDivisionError
        return parse(protocol, line)

    def writes(batch: Batch, protocol: answering.LineProtocol, line: answering.BatchLineIn, *rest: object) -> object:
        if line.custom_id == "unwritten":
            raise ZeroDivisionError
        return outcome(batch, protocol, line, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(answering, "parse", parses)
    monkeypatch.setattr(answering, "outcome", writes)
    make("good", "unread", "unwritten", "fine")
    work({"done"})
    batch = Batch.objects.get()
    assert (batch.status, batch.total, batch.succeeded, batch.errored) == ("completed", 4, 2, 2)


def test_a_batch_cancelled_while_its_last_line_was_answered_ends_cancelled(
    runtime: ScriptedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make("a", "b")

    finish = run.finish

    def late(*given: Any) -> Batch:
        results.set_status(batch.id, CANCELLING)
        return finish(*given)

    monkeypatch.setattr(run, "finish", late)
    work({"done"})
    batch.refresh_from_db()
    assert (batch.status, batch.succeeded) == (CANCELLED, 2)
