"""The actor that hands one request to this host's runtime and waits for its end.

It waits in short Python waits, so that a shutdown reaches it; 80 such threads cost nothing measurable. A
request that only a connected client waits for is taken out of Redis when it starts: when this process dies,
its client has been told, and a redelivered message finds nothing to do. A background request stays until it has ended:
its stored events hold the tokens behind them, and whoever gets its message again goes on behind the last.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dramatiq
import redis
import structlog

from mlxplatform import tracing
from mlxplatform.broker import queues
from mlxplatform.broker.dramatiq_broker import get_broker
from mlxplatform.inference.contract import Failed, Finished, InferenceRequest, Refusal, decode_events, decode_request
from workers.host.pictures import pictures_of
from workers.host.publisher import NumberedSink, Publisher, unpack_ids
from workers.host.runtime import HostRuntime, Running
from workers.host.traced import TracedSink
from workers.host.transcriber import Transcriber

log = structlog.get_logger(__name__)

#: Seconds of one wait; a shutdown is noticed this late.
WAIT_SECONDS = 0.5
#: Seconds a request that is taken up again waits for room before it is given up.
RESUME_SECONDS = 120.0


def declare(host: str, runtime: HostRuntime, publisher: Publisher, client: redis.Redis) -> Callable[[str], None]:
    """Declare ``generate`` on this host's interactive queue."""

    transcriber = Transcriber(runtime, client, publisher.flush)

    @dramatiq.actor(actor_name=queues.GENERATE, queue_name=queues.interactive(host), broker=get_broker())
    def generate(request_id: str) -> None:
        taken = take(client, request_id)
        if taken is not None:
            if taken.request.kind == "transcription":
                transcriber.run(taken.request, publisher.sink(taken.request))
            else:
                run(runtime, publisher, taken, client)
            if taken.request.outlives:
                client.delete(queues.request_key(request_id))

    return generate


@dataclass(frozen=True)
class Taken:
    """A request to run. ``first`` is the number its next event gets, ``emitted`` what an earlier process has said of it."""

    request: InferenceRequest
    first: int = 1
    emitted: tuple[int, ...] = ()


def take(client: redis.Redis, request_id: str) -> Taken | None:
    """The request; None when nobody waits for it any more, or it has ended."""
    key = queues.request_key(request_id)
    raw: Any = client.get(key)
    if raw is None:
        log.info("request.gone", request=request_id)
        return None
    request = decode_request(raw)
    if not request.outlives:
        if not client.delete(key):
            log.info("request.taken", request=request_id)  # by a second copy of this message, between our two calls
            return None
        return Taken(request)
    log_entries: Any = client.xrange(queues.events_key(request_id))
    if not log_entries:
        return Taken(request)
    last_id, fields = log_entries[-1]
    events = decode_events(fields[b"e"])
    if isinstance(events[-1], Finished | Failed):
        client.delete(key)
        return None
    emitted = [token for _, entry in log_entries for token in unpack_ids(entry.get(b"t", b""))]
    log.info("request.taken_up_again", request=request_id, tokens=len(emitted))
    return Taken(request, int(last_id.split(b"-")[0]) + len(events), tuple(emitted))


def run(runtime: HostRuntime, publisher: Publisher, taken: Taken, client: redis.Redis) -> None:
    """Run one request to its end, whatever that is; every outcome reaches its sink."""
    request = taken.request
    numbered = publisher.sink(request, taken.first, len(taken.emitted))
    sink = TracedSink(numbered, request) if tracing.is_on() else numbered
    try:
        running = _started(runtime, sink, taken, pictures_of(client, request))
    except Refusal as refusal:
        log.info("request.refused", request=request.id, code=refusal.code, status=refusal.status)
        sink([refusal.failed()])
        publisher.flush()
        return
    except Exception:  # a defect of ours: its client must still get an answer
        log.exception("request.failed", request=request.id)
        sink([Failed("engine_failed", "The engine failed on this request.", 500)])
        publisher.flush()
        return
    while not running.done.wait(WAIT_SECONDS):
        pass


def _started(runtime: HostRuntime, sink: NumberedSink | TracedSink, taken: Taken, pictures: list[bytes]) -> Running:
    """Start it; one that was promised an answer before waits for room instead of being refused it now."""
    deadline = time.monotonic() + RESUME_SECONDS
    while True:
        try:
            return runtime.start(taken.request, sink, taken.emitted, pictures)
        except Refusal as refusal:
            if taken.first == 1 or refusal.status not in (429, 503) or time.monotonic() > deadline:
                raise
            time.sleep(refusal.retry_after or WAIT_SECONDS)
