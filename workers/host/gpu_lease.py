"""The engine's side of the GPU lease: held while it works, let go when it rests or somebody should be let in.

One keeper thread per engine. The child never sees the lease; it gets a deadline, looks at it before each step
and stands still once it has passed, so a gpu process that hangs or loses its broker stops its child as well.
Streams that wait for the lease are told so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

import redis
import structlog

from mlxplatform.broker.connections import BROKER_ERRORS
from mlxplatform.broker.lease import Lease, Policy, look, reside

log = structlog.get_logger(__name__)

#: A deadline that has always passed; 0 would mean "no limit".
PASSED = 0.001
#: Seconds between renewals of the child's deadline, and between looks at whether to let go.
LOOK_SECONDS = 0.5
#: Seconds an idle engine keeps the lease: the next turn of a conversation finds it held.
LINGER_SECONDS = 2.0
#: Seconds between tries while the broker is away.
BROKER_SECONDS = 0.5


class Work(Protocol):
    """What a keeper needs of its engine."""

    def work_class(self) -> str | None:
        """interactive or rows, None when idle."""

    def set_deadline(self, monotonic: float) -> None: ...
    def tell_waiting(self, reason: str) -> None: ...


class Gate(Protocol):
    """What an engine needs of its keeper."""

    def wake(self) -> None: ...
    def resident(self, size: int) -> None: ...
    def stop(self) -> None: ...


class Keeper:
    """Acquires, renews and releases for one engine."""

    def __init__(self, work: Work, name: str, client: redis.Redis, host: str, policy: Policy):
        self._work, self._name, self._client, self._host, self._policy = work, name, client, host, policy
        self._news = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"lease-{name}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There is work."""
        self._news.set()

    def resident(self, size: int) -> None:
        """Declare the bytes the engine keeps; 0 when it is gone."""
        try:
            reside(self._client, self._host, f"engine:{self._name}", size, self._policy)
        except BROKER_ERRORS as error:
            log.warning("lease.not_declared", engine=self._name, reason=str(error))

    def stop(self) -> None:
        self._stopped = True
        self._news.set()

    def _run(self) -> None:
        while not self._stopped:
            self._news.wait()
            self._news.clear()
            cls = self._work.work_class()
            if cls is not None and not self._stopped:
                self._hold(cls)

    def _lease(self, cls: str) -> Lease:
        return Lease(self._client, self._host, mode="shared", cls=cls, reason=f"engine {self._name}", policy=self._policy)

    def _hold(self, cls: str) -> None:
        lease = self._lease(cls)
        if not self._acquire(lease):
            return
        idle_since: float | None = None
        while not self._stopped and lease.held and not lease.wanted:
            self._work.set_deadline(lease.deadline)
            now_class = self._work.work_class()
            if now_class == "interactive" and cls == "rows":
                lease, cls = self._promoted(lease)
            idle_since = (idle_since or time.monotonic()) if now_class is None else None
            if idle_since is not None and time.monotonic() - idle_since >= LINGER_SECONDS:
                break
            self._news.wait(LOOK_SECONDS)
            self._news.clear()
        self._work.set_deadline(PASSED)
        lease.release()
        if self._work.work_class() is not None:
            self._news.set()  # made room for somebody: go back into the line

    def _acquire(self, lease: Lease) -> bool:
        told = False
        while not self._stopped and self._work.work_class() is not None:
            try:
                if lease.acquire(timeout=LOOK_SECONDS, cancelled=lambda: self._stopped):
                    return True
            except BROKER_ERRORS:
                time.sleep(BROKER_SECONDS)
            if not told:
                told = True
                self._work.tell_waiting("lease")
        lease.release()
        return False

    def _promoted(self, lease: Lease) -> tuple[Lease, str]:
        """Chat has joined rows: hold the lease in its class, if it can be had at once."""
        better = self._lease("interactive")
        try:
            if better.acquire(timeout=0):
                lease.release()
                return better, "interactive"
        except BROKER_ERRORS:
            log.warning("lease.not_promoted", engine=self._name)
        return lease, "rows"


def keepers(client: redis.Redis, host: str, policy: Policy = Policy()) -> Callable[[Work, str], Gate]:  # noqa: B008  frozen
    """Makes keepers for a host's engines. The first look starts the clock after which newcomers are let in."""
    try:
        look(client, host, policy)
    except BROKER_ERRORS as error:
        log.warning("lease.broker_away", reason=str(error))
    return lambda work, name: Keeper(work, name, client, host, policy)
