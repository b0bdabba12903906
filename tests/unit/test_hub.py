"""Frames through a real Valkey to waiting requests: in order, without gaps, or an honest failure."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable

import msgspec
import pytest
import redis

from mlxplatform.broker import queues
from mlxplatform.broker.connections import async_client
from mlxplatform.inference import client as client_module
from mlxplatform.inference import hub as hub_module
from mlxplatform.inference import placement
from mlxplatform.inference.client import Stream, collect
from mlxplatform.inference.contract import (
    Admitted,
    Delivery,
    Event,
    Failed,
    Finished,
    InferenceRequest,
    Reasoning,
    Refusal,
    Text,
    Usage,
    encode,
)
from mlxplatform.inference.hub import hub, merge

pytestmark = pytest.mark.usefixtures("broker")

END = Finished("stop", Usage(3, 2))


async def opened(request_id: str = "r1") -> Stream:
    own = hub()
    await own.ready(5)
    request = InferenceRequest(id=request_id, model="m", frames=own.channel)
    return Stream(request, "local", own, own.open(request_id, "local", ""))


async def publish(*deliveries: tuple[str, int, list[Event]]) -> None:
    await async_client().publish(hub().channel, encode([Delivery(*delivery) for delivery in deliveries]))


async def control(broker: redis.Redis) -> dict[str, object]:
    for _ in range(200):
        raw = await asyncio.to_thread(broker.lpop, queues.control_key("local"))
        if raw:
            message: dict[str, object] = msgspec.msgpack.decode(raw)
            return message
        await asyncio.sleep(0.02)
    raise AssertionError("no control message came")


async def test_frames_are_split_over_their_requests() -> None:
    one, two = await opened("r1"), await opened("r2")
    await publish(("r1", 1, [Admitted(3, "m")]), ("r2", 1, [Admitted(4, "m"), Text("b"), END]))
    await publish(("r1", 2, [Text("a"), END]))
    assert (await collect(one)).text == "a"
    assert (await collect(two)).text == "b"


async def test_what_piled_up_is_merged() -> None:
    stream = await opened()
    await publish(("r1", 1, [Admitted(3, "m"), Text("a"), Text("b"), Reasoning("c"), Text("d"), END]))
    assert await stream.read(5) == [Admitted(3, "m"), Text("ab"), Reasoning("c"), Text("d"), END]
    assert stream.finished


async def test_unmerged_events_have_numbers() -> None:
    stream = await opened()
    await publish(("r1", 1, [Admitted(3, "m"), Text("a"), Text("b")]))
    assert len(await stream.read(5, merged=False)) == 3
    assert stream.seq == 3


async def test_duplicates_are_dropped() -> None:
    stream = await opened()
    await publish(("r1", 1, [Admitted(3, "m"), Text("a")]))
    await publish(("r1", 2, [Text("a"), Text("b"), END]))
    assert (await collect(stream)).text == "ab"


async def test_a_gap_fails_the_request_and_cancels_it(broker: redis.Redis) -> None:
    stream = await opened()
    await publish(("r1", 1, [Admitted(3, "m")]))
    await publish(("r1", 5, [Text("late")]))
    with pytest.raises(Refusal) as failure:
        await collect(stream)
    assert failure.value.status == 503
    assert await control(broker) == {"op": "cancel", "request": "r1", "reason": "engine_unavailable"}


async def test_a_reader_that_does_not_read_is_dropped(broker: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "INBOX_LIMIT", 1000)
    stream = await opened()
    await publish(("r1", 1, [Admitted(3, "m"), Text("x" * 2000)]))
    assert (await control(broker))["request"] == "r1"
    events = await stream.read(5)
    assert isinstance(events[-1], Failed) and events[-1].code == "client_too_slow"
    assert events[-1].usage == Usage(prompt=3, completion=1), "what came was used, whoever lost the rest"


@pytest.mark.parametrize("leave", ["close", "forget"])
async def test_leaving_cancels_the_request(broker: redis.Redis, leave: str) -> None:
    stream = await opened()
    await publish(("r1", 1, [Admitted(3, "m")]))
    await stream.read(5)
    if leave == "close":
        await stream.aclose()
    else:
        del stream  # as when a response is dropped before its generator ever ran
    assert (await control(broker))["op"] == "cancel"


async def test_a_finished_request_is_not_cancelled(broker: redis.Redis) -> None:
    stream = await opened()
    await publish(("r1", 1, [Admitted(3, "m"), END]))
    await collect(stream)
    await stream.aclose()
    await hub().flush()
    assert broker.llen(queues.control_key("local")) == 0


@pytest.mark.django_db(transaction=True)
async def test_a_request_that_a_slow_broker_may_still_get_is_taken_back(
    broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"id": "m", "kind": "chat", "capabilities": ["chat"], "current": True, "resident": True}
    state = {"host": "local", "models": [model], "engine": {"state": "ready"}, "slots": 4}
    broker.set(queues.host_key("local"), json.dumps(state))
    placement.forget()
    sent = threading.Event()
    monkeypatch.setattr(client_module, "BROKER_SECONDS", 0.5)
    monkeypatch.setattr(client_module, "_send", lambda *_: sent.wait(30))
    try:
        with pytest.raises(Refusal) as refused:
            await client_module.submit(InferenceRequest(id="late", model="m"))
        assert refused.value.status == 503
        assert (await control(broker))["request"] == "late"
    finally:
        sent.set()


async def test_silence_gives_nothing() -> None:
    assert await (await opened()).read(0.01) == []


async def test_each_wait_has_the_whole_of_its_patience() -> None:
    """Also when the alarm of an earlier wait rings in the middle of it."""
    async with await opened() as stream:
        for seq, patience in enumerate((0.4, 0.4, 0.4, None), start=1):
            reading = asyncio.create_task(stream.read(patience))
            await asyncio.sleep(0.25)
            await publish(("r1", seq, [Text("a")]))
            assert await reading == [Text("a")]


async def test_a_lost_broker_fails_what_waits(broker: redis.Redis) -> None:
    stream = await opened()
    await asyncio.to_thread(broker.client_kill_filter, _type="pubsub")
    with pytest.raises(Refusal) as failure:
        await collect(stream)
    assert failure.value.code == "engine_unavailable"
    again: Callable[[], Awaitable[None]] = lambda: hub().ready(5)  # noqa: E731  read as a sentence below
    await again()


def test_merging_keeps_every_character() -> None:
    events: list[Event] = [Text("a"), Text("b"), Reasoning("c"), Reasoning("d"), Text("e")]
    assert merge(events) == [Text("ab"), Reasoning("cd"), Text("e")]
