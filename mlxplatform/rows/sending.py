"""Chunk messages onto their host's queue, and word of finished calls back. Loses nothing that matters.

Both are only wake-ups: what is lost here is found again in SQL by the sweeper and by the orchestrator's poll.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec
import structlog

from mlxplatform.broker import queues
from mlxplatform.broker.connections import BROKER_ERRORS, sync_client
from mlxplatform.broker.dramatiq_broker import enqueue
from mlxplatform.rows.chunks import Sending

log = structlog.get_logger(__name__)


def send(sendings: Iterable[Sending]) -> int:
    """Enqueue chunk messages; returns how many went out before the broker failed, if it did."""
    sent = 0
    for sending in sendings:
        try:
            enqueue(queues.rows(sending.host), queues.RUN_CHUNK, sending.chunk, sending.fence)
        except BROKER_ERRORS as error:
            log.warning("rows.send_failed", chunk=sending.chunk, error=str(error))
            break
        sent += 1
    return sent


def announce(job: str, calls: Collection[int]) -> None:
    """Tell the job's orchestrator which of its calls have a committed result."""
    try:
        sync_client().publish(queues.rows_channel(job), msgspec.msgpack.encode(list(calls)))
    except BROKER_ERRORS as error:
        log.debug("rows.announce_failed", job=job, error=str(error))


def decode_ids(raw: bytes) -> list[int]:
    return msgspec.msgpack.decode(raw, type=list[int])
