"""From the runtime to Redis and back: frames, stored events, control messages, the generate actor's edges."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import redis

from mlxplatform.broker import queues
from mlxplatform.inference.contract import (
    Admitted,
    Failed,
    Finished,
    InferenceRequest,
    Text,
    Usage,
    decode_events,
    decode_frame,
    encode,
)
from tests.system.stack import eventually
from workers.host.control import Control
from workers.host.publisher import Publisher
from workers.tasks import generation

CHANNEL = queues.frames_channel("web1")


def request(name: str, **fields: Any) -> InferenceRequest:
    return InferenceRequest(id=name, model="tiny", **{"frames": CHANNEL, **fields})


class Listener:
    """A web process that listens."""

    def __init__(self, client: redis.Redis):
        self.pubsub = client.pubsub(ignore_subscribe_messages=True)
        self.pubsub.subscribe(CHANNEL)
        self.pubsub.get_message(timeout=5)

    def frame(self) -> list[Any]:
        message = eventually(lambda: self.pubsub.get_message(timeout=1), what="a frame")
        return decode_frame(message["data"])


@pytest.fixture
def publisher(broker: redis.Redis) -> Iterator[Publisher]:
    publisher = Publisher(broker, lambda channel: None)
    publisher.start()
    yield publisher
    publisher.close()


def test_one_frame_carries_a_whole_step_and_numbers_go_on(broker: redis.Redis, publisher: Publisher) -> None:
    listener = Listener(broker)
    one, two = publisher.sink(request("one")), publisher.sink(request("two"))
    one([Admitted(3, "tiny"), Text("a")])
    two([Admitted(4, "tiny")])
    publisher.flush()
    assert [(d.request, d.seq, len(d.events)) for d in listener.frame()] == [("one", 1, 2), ("two", 1, 1)]
    one([Text("b")])
    two([Finished("stop", Usage())])
    publisher.flush()
    assert [(d.request, d.seq) for d in listener.frame()] == [("one", 3), ("two", 2)]


def test_nothing_is_sent_before_the_step_is_over(broker: redis.Redis, publisher: Publisher) -> None:
    listener = Listener(broker)
    publisher.sink(request("one"))([Text("a")])
    assert listener.pubsub.get_message(timeout=0.05) is None
    publisher.flush()
    assert listener.frame()


def test_stored_events_are_kept_under_their_numbers(broker: redis.Redis, publisher: Publisher) -> None:
    sink = publisher.sink(request("kept", frames="", background=True))
    sink([Admitted(3, "tiny"), Text("a")])
    sink([Text("b"), Finished("stop", Usage())])
    publisher.flush()
    entries: Any = eventually(
        lambda: len(broker.xrange(queues.events_key("kept"))) == 2 and broker.xrange(queues.events_key("kept"))
    )
    assert [entry_id for entry_id, _ in entries] == [b"1-0", b"3-0"]
    assert decode_events(entries[1][1][b"e"]) == [Text("b"), Finished("stop", Usage())]
    assert broker.ttl(queues.events_key("kept")) > 0


def test_a_web_process_that_does_not_listen_twice_is_gone(broker: redis.Redis) -> None:
    gone: list[str] = []
    publisher = Publisher(broker, gone.append)
    publisher.start()
    sink = publisher.sink(request("one"))
    sink([Text("a")])
    publisher.flush()
    publisher.close()
    assert gone == []
    publisher = Publisher(broker, gone.append)
    publisher.start()
    for text in ("a", "b"):
        publisher.sink(request("one"))([Text(text)])
        publisher.flush()
        eventually(lambda: not publisher._queue.qsize(), what="the publisher")
    publisher.close()
    assert gone == [CHANNEL]


def test_control_survives_what_it_cannot_read(broker: redis.Redis) -> None:
    seen: list[str] = []
    arrived = threading.Event()

    def cancel(message: dict[str, Any]) -> None:
        seen.append(message["request"])
        arrived.set()

    def explode(message: dict[str, Any]) -> None:
        raise ZeroDivisionError

    control = Control(broker, "test", {"cancel": cancel, "explode": explode})
    control.start()
    key = queues.control_key("test")
    broker.rpush(key, b"\xc1 not msgpack", msgspec.msgpack.encode({"op": "unknown"}), msgspec.msgpack.encode({"op": "explode"}))
    broker.rpush(key, msgspec.msgpack.encode({"op": "cancel", "request": "r1"}))
    assert arrived.wait(10)
    control.stop()
    assert seen == ["r1"]


def test_a_plain_request_is_taken_once(broker: redis.Redis) -> None:
    broker.set(queues.request_key("plain"), encode(request("plain")))
    taken, first = generation.take(broker, "plain")
    assert taken is not None
    assert (taken.id, first) == ("plain", 1)
    assert generation.take(broker, "plain") == (None, 1)


def test_two_copies_of_a_message_do_not_both_take_its_request(broker: redis.Redis) -> None:
    broker.set(queues.request_key("twin"), encode(request("twin")))

    class Late:
        """The client of the second copy, which has read the request just before the first one took it."""

        def get(self, key: str) -> Any:
            raw = broker.get(key)
            assert generation.take(broker, "twin")[0] is not None
            return raw

        def __getattr__(self, name: str) -> Any:
            return getattr(broker, name)

    late: Any = Late()
    assert generation.take(late, "twin") == (None, 1)


def test_a_broker_that_refused_to_write_costs_its_frames_and_not_the_publisher(broker: redis.Redis, publisher: Publisher) -> None:
    listener = Listener(broker)
    sink = publisher.sink(request("kept", background=True))
    broker.config_set("maxmemory", 1)
    try:
        sink([Admitted(3, "tiny")])
        publisher.flush()
        listener.frame()  # published, although the event could not be stored
    finally:
        broker.config_set("maxmemory", 0)
    sink([Text("b")])
    publisher.flush()
    assert [(d.request, d.seq) for d in listener.frame()] == [("kept", 2)]
    eventually(lambda: broker.xlen(queues.events_key("kept")) == 1, what="the stored event")


def test_a_background_request_of_a_dead_process_fails_after_its_last_event(broker: redis.Redis, publisher: Publisher) -> None:
    asked = request("back", frames="", background=True)
    broker.set(queues.request_key("back"), encode(asked))
    publisher.sink(asked)([Admitted(3, "tiny"), Text("a")])
    publisher.flush()
    eventually(lambda: broker.xlen(queues.events_key("back")) == 1)
    taken, first = generation.take(broker, "back")
    assert (taken, first) == (asked, 3)
    runtime: Any = None  # it must not be asked
    generation.run(runtime, publisher, asked, first)
    last: Any = eventually(
        lambda: broker.xlen(queues.events_key("back")) == 2 and broker.xrevrange(queues.events_key("back"), count=1)
    )
    assert last[0][0] == b"3-0"
    (failed,) = decode_events(last[0][1][b"e"])
    assert isinstance(failed, Failed)
    assert (failed.status, failed.code) == (503, "engine_unavailable")
