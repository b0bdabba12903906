"""The process's Dramatiq broker, and enqueueing an actor by name.

Actors are named, not imported, so that whoever enqueues needs no worker module. There is no retry middleware:
attempts are counted in SQL by whoever owns the work, because a retry in the broker does not see a SIGKILL. There
is no time limit either: one that raises in Python cannot stop a native call; children are killed instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import dramatiq
from dramatiq.message import Message
from dramatiq.middleware import Callbacks, CurrentMessage, Middleware, ShutdownNotifications

from mlxplatform.broker.connections import sync_client
from mlxplatform.broker.wake import WakeBroker

#: Redis namespace of Dramatiq's own keys.
DRAMATIQ_NAMESPACE = "dramatiq"
#: Milliseconds without a heartbeat after which a consumer's unacknowledged messages return to their queue. Above
#: the longest time a process of ours may keep Python's lock (loading a model happens in a child).
HEARTBEAT_TIMEOUT = 30_000
#: Commands in a million that also look for dead consumers. The default of 1,000 leaves an idle system minutes behind.
MAINTENANCE_CHANCE = 50_000

_lock = threading.Lock()
_broker: WakeBroker | None = None


def make_broker() -> WakeBroker:
    """A new broker on the process's Redis client."""
    middleware: list[Middleware] = [ShutdownNotifications(notify_shutdown=True), Callbacks(), CurrentMessage()]
    return WakeBroker(
        client=sync_client(),
        middleware=middleware,
        namespace=DRAMATIQ_NAMESPACE,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        maintenance_chance=MAINTENANCE_CHANCE,
    )


def get_broker() -> WakeBroker:
    """The process-wide broker, made at first use and set as Dramatiq's global one."""
    global _broker
    with _lock:
        if _broker is None:
            _broker = make_broker()
            dramatiq.set_broker(_broker)
        return _broker


def enqueue(queue: str, actor: str, *args: Any, first: Callable[[Any], None] | None = None) -> None:
    """Put one message on ``queue`` for the actor called ``actor``, behind what ``first`` adds to the pipeline.

    Raises:
        redis.ConnectionError, redis.TimeoutError: the broker is down; nothing was enqueued.
    """
    get_broker().enqueue(Message(queue_name=queue, actor_name=actor, args=args, kwargs={}, options={}), first=first)
