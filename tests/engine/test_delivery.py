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
    Finished,
    InferenceRequest,
    Message,
    Text,
    Usage,
    decode_events,
    decode_frame,
    encode,
)
from tests.engine.conftest import ENDLESS
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
    taken = generation.take(broker, "plain")
    assert taken is not None
    assert (taken.request.id, taken.first, taken.emitted) == ("plain", 1, ())
    assert generation.take(broker, "plain") is None


def test_two_copies_of_a_message_do_not_both_take_its_request(broker: redis.Redis) -> None:
    broker.set(queues.request_key("twin"), encode(request("twin")))

    class Late:
        """The client of the second copy, which has read the request just before the first one took it."""

        def get(self, key: str) -> Any:
            raw = broker.get(key)
            assert generation.take(broker, "twin") is not None
            return raw

        def __getattr__(self, name: str) -> Any:
            return getattr(broker, name)

    late: Any = Late()
    assert generation.take(late, "twin") is None


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


def stored(broker: redis.Redis, request_id: str) -> list[tuple[int, Any]]:
    entries: Any = broker.xrange(queues.events_key(request_id))
    return [
        (int(entry_id.split(b"-")[0]) + offset, event)
        for entry_id, fields in entries
        for offset, event in enumerate(decode_events(fields[b"e"]))
    ]


def test_a_background_request_of_a_dead_process_goes_on_behind_its_last_event(
    broker: redis.Redis, publisher: Publisher, make_host: Any
) -> None:
    asked = InferenceRequest(
        id="back",
        model="tiny",
        messages=[Message("user", "What is 2 plus 3?")],
        sampling=ENDLESS,
        max_tokens=120,
        background=True,
    )
    host = make_host()
    whole = host.ask("What is 2 plus 3?", max_tokens=120, sampling=ENDLESS).text
    broker.set(queues.request_key("back"), encode(asked))
    # The first process: it dies with half of the answer stored.
    own = Publisher(broker, lambda channel: None)
    own.start()
    first = own.sink(asked)
    dying = make_host()
    dying.runtime.on_flush.append(own.flush)
    running = dying.runtime.start(asked, first)
    eventually(lambda: len(stored(broker, "back")) > 20, what="some of the answer")
    first._publisher = Publisher(broker, lambda channel: None)  # nothing new reaches the log any more
    own.close()
    running.cancel()
    said = stored(broker, "back")
    # Its successor gets the message again.
    host.runtime.on_flush.append(publisher.flush)
    taken = generation.take(broker, "back")
    assert taken is not None
    assert taken.first == said[-1][0] + 1
    assert len(taken.emitted) > 10
    generation.run(host.runtime, publisher, taken, broker)
    publisher.flush()
    ended = eventually(lambda: isinstance((log := stored(broker, "back"))[-1][1], Finished) and log, what="the end")
    assert [number for number, _ in ended] == list(range(1, len(ended) + 1))
    assert sum(isinstance(event, Admitted) for _, event in ended) == 1
    assert "".join(event.text for _, event in ended if isinstance(event, Text)) == whole
    assert ended[-1][1].usage.completion == 120
    assert generation.take(broker, "back") is None, "what has ended is not begun again"
