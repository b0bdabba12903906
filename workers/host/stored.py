"""The stored requests of this host: said to be alive, and stopped when nobody watches or comes back.

Web processes keep a mark in Redis for each stored stream that somebody watches or may come back to; it outlives the last
viewer by the grace period. This process looks at the marks, so the rule holds also when the web process that took the
request died within the grace. Background requests need no viewer. Every look also renews a sign of life, from which
whoever finds an unfinished answer can tell whether it will ever be finished.
"""

from __future__ import annotations

import threading

import redis
import structlog

from mlxplatform.broker import queues
from mlxplatform.broker.connections import BROKER_ERRORS
from workers.host.runtime import Cancellable, HostRuntime

log = structlog.get_logger(__name__)

#: Looks in a row that found no mark after which a stream counts as left: a broker that lost its data gets the marks
#: back within one look of its web processes.
MISSES = 3


class StoredRequests:
    """Looks until stopped."""

    def __init__(self, runtime: HostRuntime, client: redis.Redis):
        self._runtime, self._client = runtime, client
        self._misses: dict[str, int] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stored-requests", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def look(self) -> None:
        """Renew the signs of life, stop what was left."""
        running = [r for r in self._runtime.running() if r.request.outlives]
        left = [r for r in running if not r.request.background]
        if not running:
            self._misses.clear()
            return
        with self._client.pipeline(transaction=False) as pipe:
            for one in running:
                pipe.set(queues.alive_key(one.request.id), 1, ex=queues.ALIVE_TTL)
                # What the next process would take it up from must not expire under a long answer.
                pipe.expire(queues.request_key(one.request.id), queues.REQUEST_TTL)
            for one in left:
                pipe.exists(queues.viewer_key(one.request.id))
            watched = pipe.execute()[2 * len(running) :]
        self._misses = {
            one.request.id: self._misses.get(one.request.id, 0) + 1 for one, seen in zip(left, watched, strict=True) if not seen
        }
        for one in left:
            if self._misses.get(one.request.id, 0) >= MISSES:
                self._give_up(one)

    def _give_up(self, one: Cancellable) -> None:
        log.info("request.left", request=one.request.id)
        one.cancel("nobody watches this stored stream")

    def _run(self) -> None:
        while not self._stopped.wait(queues.STORED_LOOK):
            try:
                self.look()
            except BROKER_ERRORS as error:
                log.warning("stored.broker_away", reason=str(error))
