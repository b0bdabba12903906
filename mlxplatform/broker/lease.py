"""The right to use a host's GPU: who holds it, who waits, in which order, and how a late holder is stopped.

Only the gpu process acquires it, one :class:`Lease` for each child. Engines hold it ``shared`` while a sequence
runs; a trainer holds it ``exclusive`` and looks at :attr:`Lease.wanted` between steps: true means somebody it
should make room for waits, so it releases and acquires again. Memory of loaded models is declared apart
(:func:`reside`), since a model stays loaded while it does not compute.

Order: better class first, within a class first come first served; a waiter that was patient long enough stands
one class better. Two different classes of equal rank (trainer, rows) alternate by slices.

What it guarantees: of two holders that exclude each other at most one is accepted, because each grant carries a
larger fencing number and :func:`is_current` refuses older ones. What it cannot guarantee: that a process stopped
in the middle of a step does not finish that step later; :attr:`Lease.deadline` tells a holder when to stop by
itself. The script's own page (lease.lua) lists every key.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import redis
import structlog

from mlxplatform.broker.connections import BROKER_ERRORS
from mlxplatform.broker.queues import NAMESPACE

log = structlog.get_logger(__name__)

Mode = Literal["shared", "exclusive"]

#: Who asks, and how it ranks: smaller goes first, equal ranks alternate.
RANKS = {"interactive": 0, "trainer": 1, "rows": 1}

#: Seconds of silence after which a holder has lost the lease and a waiter its place.
TTL = 10.0
#: Seconds between signs of life. A wiped broker is noticed within one.
RENEW = 1.0
#: Seconds before the end of the TTL at which a holder must stop by itself; covers one step and the way back.
MARGIN = 2.0

SCRIPT = Path(__file__).with_suffix(".lua").read_text()


@dataclass(frozen=True)
class Policy:
    """How the lease is shared. Times in seconds, ``budget`` in bytes (0: unlimited)."""

    budget: int = 0
    #: How long one class keeps the GPU while another of equal rank waits.
    slice_s: float = 30.0
    #: How long a waiter is passed by better classes before it stands one class better.
    patience_s: float = 20.0
    #: After a start or a wipe: how long holders from before may come back before anybody new is let in.
    settle_s: float = 2.5

    def encoded(self) -> str:
        return json.dumps(
            {
                "budget": self.budget,
                "slice_ms": int(self.slice_s * 1000),
                "patience_ms": int(self.patience_s * 1000),
                "settle_ms": int(self.settle_s * 1000),
            }
        )


class LeaseLost(Exception):
    """The lease ran out before it was renewed; somebody else may hold it. Stop, write nothing."""


class LeaseTooLarge(Exception):
    """The declared bytes exceed the host's whole budget; waiting would never help."""

    def __init__(self, excess: int):
        super().__init__(f"{excess} bytes more than the budget")
        self.excess = excess


def key(host: str) -> str:
    """Base of a host's keys; the braces keep them in one slot of a cluster."""
    return f"{{{NAMESPACE}:lease:{host}}}"


def _call(client: redis.Redis, host: str, op: str, token: str, ttl: float, record: str, policy: Policy | None) -> Any:
    script = client.register_script(SCRIPT)
    return script(keys=[key(host)], args=[op, token, int(ttl * 1000), record, policy.encoded() if policy else ""])


def look(client: redis.Redis, host: str, policy: Policy | None = None) -> dict[str, Any]:
    """Holders, waiters in order, resident bytes and the last 50 happenings; by the host's own policy when none is given."""
    seen = json.loads(_call(client, host, "look", "", TTL, "{}", policy))
    for name in ("holders", "waiters", "resident", "history"):
        seen[name] = seen[name] or []  # the script's language writes an empty list as {}
    return cast(dict[str, Any], seen)


def reside(client: redis.Redis, host: str, name: str, size: int, policy: Policy | None = None) -> None:
    """Declare that ``name`` keeps ``size`` bytes of memory (0: no more)."""
    _call(client, host, "reside", name, TTL, str(size), policy)


def is_current(client: redis.Redis, host: str, fence: int) -> bool:
    """Whether a holder with this number still holds the lease: asked by whoever accepts a holder's write."""
    records = cast("dict[bytes, bytes]", client.hgetall(f"{key(host)}:records"))
    return fence > 0 and any(json.loads(record)["fence"] == fence for record in records.values())


class Lease:
    """One child's place in the queue and, later, its hold. Not reusable by two threads at once."""

    def __init__(
        self,
        client: redis.Redis,
        host: str,
        *,
        mode: Mode,
        cls: str,
        reason: str = "",
        size: int = 0,
        job: str = "",
        policy: Policy | None = None,
        ttl: float = TTL,
        on_lost: Callable[[], None] | None = None,
    ):
        self._client = client
        self._host = host
        self._policy = policy
        self._ttl = ttl
        self._on_lost = on_lost
        self._record = {"mode": mode, "class": cls, "rank": RANKS[cls], "reason": reason, "bytes": size, "job": job}
        self._stop = threading.Event()
        self._renewed = 0.0
        self._lost = False
        self.token = uuid.uuid4().hex
        #: The fencing number; 0 while not held.
        self.fence = 0
        #: True when the holder should make room: release, then acquire again.
        self.wanted = False
        #: Waiters in front, while waiting.
        self.ahead = 0

    @property
    def held(self) -> bool:
        return self.fence > 0

    @property
    def deadline(self) -> float:
        """``time.monotonic()`` after which no further step may begin without a renewal."""
        return self._renewed + self._ttl - min(MARGIN, self._ttl / 4)

    def check(self) -> None:
        """Ask before each step.

        Raises:
            LeaseLost: it is not held any more, or could not be renewed in time.
        """
        if self._lost or not self.held or time.monotonic() >= self.deadline:
            raise LeaseLost(self._host)

    def acquire(self, timeout: float | None = None, cancelled: Callable[[], bool] = lambda: False) -> bool:
        """Wait for the lease; False when ``timeout`` seconds passed or ``cancelled()`` became true.

        After a timeout the place in the queue is kept for the TTL, so that who asks again goes on waiting where it
        was; who does not want it any more calls :meth:`release`. After a cancel it is given up at once.

        Raises:
            LeaseTooLarge: it can never fit.
            redis.ConnectionError: the broker is down (the place is kept for the TTL).
        """
        end = None if timeout is None else time.monotonic() + timeout
        self._lost = False
        while True:
            asked = time.monotonic()
            fence, wanted, self.ahead, excess = self._ask("acquire")
            if fence < 0:
                raise LeaseTooLarge(int(excess))
            if fence:
                self._hold(int(fence), bool(wanted), asked)
                return True
            left = None if end is None else end - time.monotonic()
            if cancelled():
                self._ask("release")
                return False
            if left is not None and left <= 0:
                return False
            # Woken by the grant; at the latest in time to show life and to look at ``cancelled``.
            nap = min(RENEW, self._ttl / 3, left if left is not None else RENEW)
            self._client.blpop([f"{key(self._host)}:wake:{self.token}"], timeout=max(nap, 0.01))

    def release(self) -> None:
        """Let go (or leave the queue). Harmless when it is already lost; never touches another's hold."""
        self._stop.set()
        self.fence, self.wanted = 0, False
        try:
            self._ask("release")
        except BROKER_ERRORS:
            log.warning("lease_release_deferred", host=self._host)  # it runs out by itself

    def _ask(self, op: str) -> list[int]:
        record = json.dumps({**self._record, "fence": self.fence})
        return cast("list[int]", _call(self._client, self._host, op, self.token, self._ttl, record, self._policy))

    def _hold(self, fence: int, wanted: bool, asked: float) -> None:
        self.fence, self.wanted, self._renewed, self.ahead = fence, wanted, asked, 0
        self._stop = threading.Event()
        threading.Thread(target=self._keep, args=(self._stop,), name=f"lease-{self._host}", daemon=True).start()

    def _keep(self, stop: threading.Event) -> None:
        while not stop.wait(min(RENEW, self._ttl / 3)):
            asked = time.monotonic()
            try:
                fence, wanted, _, _ = self._ask("renew")
            except BROKER_ERRORS:
                if time.monotonic() >= self.deadline:
                    self._lose(stop)
                    return
                continue
            if stop.is_set():
                return
            if not fence:
                self._lose(stop)
                return
            self._renewed, self.wanted = asked, bool(wanted)

    def _lose(self, stop: threading.Event) -> None:
        if stop.is_set():
            return
        self._lost, self.fence = True, 0
        log.warning("lease_lost", host=self._host, token=self.token)
        if self._on_lost is not None:
            self._on_lost()

    def __enter__(self) -> Lease:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
