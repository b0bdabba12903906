"""The actor that hands one request to this host's runtime and waits for its end.

It waits in short Python waits, so that a shutdown reaches it; 80 such threads cost nothing measurable. A
request that only a connected client waits for is taken out of Redis when it starts: when this process dies,
its client has been told, and a redelivered message finds nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dramatiq
import redis
import structlog

from mlxplatform.broker import queues
from mlxplatform.broker.dramatiq_broker import get_broker
from mlxplatform.inference.contract import Failed, InferenceRequest, Refusal, decode_events, decode_request
from workers.host.publisher import Publisher
from workers.host.runtime import HostRuntime

log = structlog.get_logger(__name__)

#: Seconds of one wait; a shutdown is noticed this late.
WAIT_SECONDS = 0.5


def declare(host: str, runtime: HostRuntime, publisher: Publisher, client: redis.Redis) -> Callable[[str], None]:
    """Declare ``generate`` on this host's interactive queue."""

    @dramatiq.actor(actor_name=queues.GENERATE, queue_name=queues.interactive(host), broker=get_broker())
    def generate(request_id: str) -> None:
        request, first = take(client, request_id)
        if request is not None:
            run(runtime, publisher, request, first)
            client.delete(queues.request_key(request_id))

    return generate


def take(client: redis.Redis, request_id: str) -> tuple[InferenceRequest | None, int]:
    """The request and the number its first event gets; None when nobody waits for it any more."""
    key = queues.request_key(request_id)
    raw: Any = client.get(key)
    if raw is None:
        log.info("request.gone", request=request_id)
        return None, 1
    request = decode_request(raw)
    if not request.background and not client.delete(key):
        log.info("request.taken", request=request_id)  # by a second copy of this message, between our two calls
        return None, 1
    first = 1
    if request.stored or request.background:
        last: Any = client.xrevrange(queues.events_key(request_id), count=1)
        if last:
            entry_id, fields = last[0]
            first = int(entry_id.split(b"-")[0]) + len(decode_events(fields[b"e"]))
    return request, first


def run(runtime: HostRuntime, publisher: Publisher, request: InferenceRequest, first: int = 1) -> None:
    """Run one request to its end, whatever that is; every outcome reaches its sink."""
    sink = publisher.sink(request, first)
    if first > 1:  # an earlier process of this host began it and died
        refusal = Refusal(503, "engine_unavailable", "The server was restarted while it worked on this request.")
        sink([refusal.failed()])
        publisher.flush()
        return
    try:
        running = runtime.start(request, sink)
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
