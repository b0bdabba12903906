"""From sinks to Redis: one PUBLISH per decode step and web process, one stream entry per stored delivery.

Sinks only append to lists; :meth:`Publisher.flush`, called by the engine at the end of each step, hands what
has gathered to the publisher's thread. When that thread is behind, steps merge by themselves. Events are
numbered here, per request, from 1; a stored delivery's stream id is the number of its first event.
"""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable

import redis
import structlog

from mlxplatform.broker import queues
from mlxplatform.broker.connections import BROKER_ERRORS
from mlxplatform.inference.contract import Delivery, Event, InferenceRequest, encode
from workers.host.journal import Sink

log = structlog.get_logger(__name__)

#: Publishes in a row that reached nobody after which a web process counts as gone.
MISSES = 2
#: Entries kept of one request's stored events; longer answers keep their end, SQL has the whole.
EVENTS_KEPT = 100_000
#: Seconds stored events outlive their last entry in Redis.
EVENTS_TTL = 3600


class Publisher:
    """``on_gone(channel)`` is called when a web process no longer listens."""

    def __init__(self, client: redis.Redis, on_gone: Callable[[str], None]):
        self._client, self._on_gone = client, on_gone
        self._gathered: list[tuple[InferenceRequest, Delivery]] = []
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[list[tuple[InferenceRequest, Delivery]] | None] = queue.SimpleQueue()
        self._misses: dict[str, int] = defaultdict(int)
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def sink(self, request: InferenceRequest, first: int = 1) -> Sink:
        """A sink that numbers the request's events from ``first`` and sends them where they are wanted."""
        number = first

        def deliver(events: list[Event]) -> None:
            nonlocal number
            if not events:
                return
            delivery = Delivery(request.id, number, events)
            number += len(events)
            with self._lock:
                self._gathered.append((request, delivery))

        return deliver

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
        while (gathered := self._queue.get()) is not None:
            try:
                while (more := self._queue.get_nowait()) is not None:
                    gathered += more
            except queue.Empty:
                more = gathered
            try:
                self._send(gathered)
            except BROKER_ERRORS as error:
                log.error("publisher.broker_down", lost=len(gathered), reason=str(error))
            except Exception:  # a defect met with one delivery must not silence every answer after it
                log.exception("publisher.failed", lost=len(gathered))
            if more is None:
                return

    def _send(self, gathered: list[tuple[InferenceRequest, Delivery]]) -> None:
        frames: dict[str, list[Delivery]] = defaultdict(list)
        with self._client.pipeline(transaction=False) as pipe:
            for request, delivery in gathered:
                if request.stored or request.background:
                    key = queues.events_key(request.id)
                    pipe.xadd(key, {"e": encode(delivery.events)}, id=f"{delivery.seq}-0", maxlen=EVENTS_KEPT, approximate=True)
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
