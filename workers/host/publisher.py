"""From sinks to Redis: one PUBLISH per decode step and web process, one stream entry per stored delivery.

Sinks only append to lists; :meth:`Publisher.flush`, called by the engine at the end of each step, hands what
has gathered to the publisher's thread. When that thread is behind, steps merge by themselves. Events are
numbered here, per request, from 1; a stored delivery's stream id is the number of its first event.
"""

from __future__ import annotations

import queue
import threading
import time
from array import array
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import redis
import structlog

from mlxplatform.broker import queues
from mlxplatform.broker.connections import BROKER_ERRORS
from mlxplatform.inference.contract import Delivery, Event, InferenceRequest, Reasoning, Text, encode

log = structlog.get_logger(__name__)

#: Publishes in a row that reached nobody after which a web process counts as gone.
MISSES = 2
#: Frames in the middle of answers are at least so many seconds apart. Only models faster than 200 steps a second notice:
#: at 1,000 a process that reads frames does nothing else, and whoever comes then waits behind them.
FRAME_SECONDS = 0.005
#: Events at the beginning of an answer that go out at once: admission, a place in line, the first words.
FIRST_EVENTS = 3
#: Entries kept of one request's stored events; longer answers keep their end, SQL has the whole.
EVENTS_KEPT = 100_000
#: Seconds stored events outlive their last entry in Redis.
EVENTS_TTL = 3600


def _is_news(gathered: list[Gathered]) -> bool:
    """Whether anything but the middle of answers is in it: a beginning, an end, a first word."""
    return any(
        delivery.seq <= FIRST_EVENTS or not all(isinstance(event, Text | Reasoning) for event in delivery.events)
        for _, delivery, _ in gathered
    )


def pack_ids(tokens: list[int]) -> bytes:
    return array("I", tokens).tobytes()


def unpack_ids(raw: bytes) -> list[int]:
    return array("I", raw).tolist()


#: A delivery of a request, with the ids of the tokens behind it where they are to be kept.
Gathered = tuple[InferenceRequest, Delivery, list[int]]


class NumberedSink:
    """Events of one request, numbered. Called by its engine; follows the tokens of a background request, so that each
    stored entry holds those that led to it and another process can go on behind the last."""

    def __init__(self, publisher: Publisher, request: InferenceRequest, first: int, kept: int):
        self._publisher, self._request, self._number, self._kept = publisher, request, first, kept
        self._emitted: list[int] = []

    def follow(self, emitted: list[int]) -> None:
        """The list that will grow by each token of the request."""
        if self._request.outlives:
            self._emitted = emitted

    def __call__(self, events: list[Event]) -> None:
        if not events:
            return
        tokens = self._emitted[self._kept :]
        self._kept += len(tokens)
        self._publisher.gather(self._request, Delivery(self._request.id, self._number, events), tokens)
        self._number += len(events)


class Publisher:
    """``on_gone(channel)`` is called when a web process no longer listens."""

    def __init__(self, client: redis.Redis, on_gone: Callable[[str], None]):
        self._client, self._on_gone = client, on_gone
        self._gathered: list[Gathered] = []
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[list[Gathered] | None] = queue.SimpleQueue()
        self._misses: dict[str, int] = defaultdict(int)
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def sink(self, request: InferenceRequest, first: int = 1, kept: int = 0) -> NumberedSink:
        """A sink that numbers the request's events from ``first`` and sends them where they are wanted.

        ``kept`` of the request's tokens are in the log already, from an earlier process.
        """
        return NumberedSink(self, request, first, kept)

    def gather(self, request: InferenceRequest, delivery: Delivery, tokens: list[int]) -> None:
        with self._lock:
            self._gathered.append((request, delivery, tokens))

    def flush(self) -> None:
        """Hand over what has gathered. Cheap; never blocks on Redis."""
        with self._lock:
            gathered, self._gathered = self._gathered, []
        if gathered:
            self._queue.put(gathered)

    def close(self) -> None:
        """Send what is left, then stop."""
        self.flush()
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        sent = 0.0
        while (gathered := self._queue.get()) is not None:
            more: list[Gathered] | None = gathered
            try:
                while True:
                    wait = 0.0 if _is_news(gathered) else max(0.0, sent + FRAME_SECONDS - time.monotonic())
                    if (more := self._queue.get(timeout=wait) if wait else self._queue.get_nowait()) is None:
                        break
                    gathered += more
            except queue.Empty:
                more = gathered
            sent = time.monotonic()
            try:
                self._send(gathered)
            except BROKER_ERRORS as error:
                log.error("publisher.broker_down", lost=len(gathered), reason=str(error))
            except Exception:  # a defect met with one delivery must not silence every answer after it
                log.exception("publisher.failed", lost=len(gathered))
            if more is None:
                return

    def _send(self, gathered: list[Gathered]) -> None:
        frames: dict[str, list[Delivery]] = defaultdict(list)
        with self._client.pipeline(transaction=False) as pipe:
            for request, delivery, tokens in gathered:
                if request.outlives:
                    key = queues.events_key(request.id)
                    fields: Any = {"e": encode(delivery.events), **({"t": pack_ids(tokens)} if tokens else {})}
                    pipe.xadd(key, fields, id=f"{delivery.seq}-0", maxlen=EVENTS_KEPT, approximate=True)
                    pipe.expire(key, EVENTS_TTL)
                if request.frames:
                    frames[request.frames].append(delivery)
            others = len(pipe)
            for channel, deliveries in frames.items():
                pipe.publish(channel, encode(deliveries))
            reached = pipe.execute()[others:]
        for channel, subscribers in zip(frames, reached, strict=True):
            if subscribers:
                self._misses.pop(channel, None)
                continue
            self._misses[channel] += 1
            if self._misses[channel] >= MISSES:
                del self._misses[channel]
                log.warning("publisher.nobody_listens", channel=channel)
                self._on_gone(channel)
