"""Stored streams without a viewer are stopped; unfinished answers whose processes died are ended from what is left."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync
from django.utils import timezone

from mlxplatform.api import tending
from mlxplatform.broker import queues
from mlxplatform.inference import history, request_log
from mlxplatform.inference.contract import Admitted, Event, Finished, InferenceRequest, Text, Usage, encode
from mlxplatform.inference.models import FinishedRequest, StoredAnswer
from workers.host.stored import MISSES, StoredRequests

TURN = [{"role": "user", "content": "Where is the owl?"}]
ANSWER: list[Event] = [Admitted(7, "tiny"), Text("In the "), Text("attic."), Finished("stop", Usage(7, 3))]


class Running:
    """A request under way that notes whether it was stopped."""

    def __init__(self, request_id: str, **more: Any) -> None:
        self.request = InferenceRequest(id=request_id, model="tiny", **more)
        self.stopped = False

    def cancel(self, reason: str = "") -> None:
        self.stopped = True


class Runtime:
    def __init__(self, *running: Running) -> None:
        self._running = running

    def running(self) -> list[Running]:
        return list(self._running)


def looked(broker: redis.Redis, running: Running, times: int) -> bool:
    """Whether so many looks stopped it."""
    stored = StoredRequests(Runtime(running), broker)  # type: ignore[arg-type]
    for _ in range(times):
        stored.look()
    return running.stopped


def test_a_stream_without_a_mark_is_stopped_after_several_looks(broker: redis.Redis) -> None:
    assert not looked(broker, Running("r1", stored=True), MISSES - 1)
    assert looked(broker, Running("r1", stored=True), MISSES)


def test_a_watched_stream_runs_on(broker: redis.Redis) -> None:
    broker.set(queues.viewer_key("r1"), 1)
    assert not looked(broker, Running("r1", stored=True), 3 * MISSES)


def test_a_mark_that_comes_back_in_time_saves_a_stream(broker: redis.Redis) -> None:
    running = Running("r1", stored=True)
    stored = StoredRequests(Runtime(running), broker)  # type: ignore[arg-type]
    for _ in range(MISSES):
        broker.delete(queues.viewer_key("r1"))
        stored.look()
        broker.set(queues.viewer_key("r1"), 1)
        stored.look()
    assert not running.stopped


@pytest.mark.parametrize("more", [{"stored": True, "background": True}, {"background": True}, {}])
def test_what_waits_for_no_viewer_runs_on(broker: redis.Redis, more: dict[str, bool]) -> None:
    assert not looked(broker, Running("r1", **more), 2 * MISSES)


def test_stored_requests_show_that_they_are_alive(broker: redis.Redis) -> None:
    looked(broker, Running("r1", stored=True), 1)
    looked(broker, Running("r2"), 1)
    assert broker.exists(queues.alive_key("r1")) and not broker.exists(queues.alive_key("r2"))


def test_what_a_long_request_would_be_resumed_from_does_not_expire(broker: redis.Redis) -> None:
    broker.set(queues.request_key("r1"), b"x", ex=5)
    looked(broker, Running("r1", background=True), 1)
    assert broker.ttl(queues.request_key("r1")) > 60


def keep_open(answer_id: str, kind: str, age_s: float = 120) -> None:
    facts = {"id": answer_id, "model": "tiny", "created": 1, "one_call": False, "logprobs": False, "path": "/v1/x"}
    echo = {"echo": {"instructions": None}}
    items = TURN if kind == "chat.completion" else [{"type": "message", **TURN[0]}]
    row = history.Record(answer_id, kind, "default", "tiny", {**facts, **echo}, items, {}, {}, status="in_progress")
    history.save(row)
    StoredAnswer.objects.filter(id=answer_id).update(created_at=timezone.now() - timedelta(seconds=age_s))


def log_events(broker: redis.Redis, answer_id: str, events: list[Event]) -> None:
    for number, event in enumerate(events, 1):
        broker.xadd(queues.events_key(answer_id), {"e": encode([event])}, id=f"{number}-0")


@pytest.fixture
def tend(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    monkeypatch.setattr(queues, "STORED_LOOK", 0.01)
    return async_to_sync(tending.look)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("kind", "answer_id"), [("chat.completion", "chatcmpl-1"), ("response", "resp_1")])
def test_an_answer_that_ended_in_its_log_is_kept_and_recorded(
    broker: redis.Redis, tend: Callable[[], None], kind: str, answer_id: str
) -> None:
    keep_open(answer_id, kind)
    log_events(broker, answer_id, ANSWER)
    tend()
    row = StoredAnswer.objects.get(id=answer_id)
    assert row.status == "completed" and "In the attic." in row.answer
    request_log.flush()
    line = FinishedRequest.objects.get(id=answer_id)
    content = request_log.content_of(line)
    assert (line.path, line.completion_tokens) == ("/v1/x", 3)
    assert content is not None and content.messages[-1].content == "Where is the owl?"
    assert content.answers[0].text == "In the attic."


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("kind", "answer_id"), [("chat.completion", "chatcmpl-1"), ("response", "resp_1")])
def test_an_answer_nobody_works_on_is_ended_as_failed(
    broker: redis.Redis, tend: Callable[[], None], kind: str, answer_id: str
) -> None:
    keep_open(answer_id, kind)
    log_events(broker, answer_id, ANSWER[:2])
    tend()
    assert StoredAnswer.objects.get(id=answer_id).status == "failed"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("key", [queues.alive_key, queues.request_key])
def test_an_answer_somebody_works_on_or_will_is_left_alone(
    broker: redis.Redis, tend: Callable[[], None], key: Callable[[str], str]
) -> None:
    keep_open("resp_1", "response")
    broker.set(key("resp_1"), b"1")
    tend()
    assert StoredAnswer.objects.get(id="resp_1").status == "in_progress"
    StoredAnswer.objects.filter(id="resp_1").update(created_at=timezone.now())
    broker.flushall()
    tend()
    assert StoredAnswer.objects.get(id="resp_1").status == "in_progress", "too young to be lost"
