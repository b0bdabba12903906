"""Connections to Redis or Valkey: one client per process (and per event loop for asyncio).

Knows the URL and the four defaults of redis-py 8 that must not stay: a socket timeout of 5 s for event loops (it
breaks every longer blocking read; they bound their waits themselves), a pool of 100, silent half-dead connections,
and a retry ladder of several seconds that would turn "the broker is down" into a hanging request. Knows no keys and
no messages.
"""

from __future__ import annotations

import asyncio
import threading
import weakref

import redis
import redis.asyncio
from django.conf import settings
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

#: Seconds to wait for the broker to accept a connection. It is local or one hop away.
CONNECT_TIMEOUT = 3.0
#: Seconds a thread waits for an answer of a broker that accepts connections but hangs (stopped, or swapping). Longer
#: than any blocking read of ours: those wait a second or two at a time.
ANSWER_TIMEOUT = 6.0
#: Seconds of idleness after which a pooled connection is pinged before use.
HEALTH_CHECK_INTERVAL = 30
#: Waiting consumers hold a connection each, so the pool is bounded by file descriptors, not by itself.
MAX_CONNECTIONS = 10_000
#: One silent retry replaces pooled connections that died with a restarted broker; more would only delay the 503.
RETRIES = 1

#: What a broker that is down, restarting, unreachable, or refuses to write (its disk or memory is full) raises.
#: redis-py's TimeoutError is no ConnectionError.
BROKER_ERRORS = (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError, redis.ResponseError, OSError)

_lock = threading.Lock()
_sync: dict[str, redis.Redis] = {}
_async: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, redis.asyncio.Redis] = weakref.WeakKeyDictionary()


def sync_client() -> redis.Redis:
    """The process-wide blocking client; thread-safe."""
    url = settings.REDIS_URL
    with _lock:
        client = _sync.get(url)
        if client is None:
            client = _sync[url] = redis.Redis.from_url(
                url,
                socket_timeout=ANSWER_TIMEOUT,
                socket_connect_timeout=CONNECT_TIMEOUT,
                health_check_interval=HEALTH_CHECK_INTERVAL,
                max_connections=MAX_CONNECTIONS,
                retry=Retry(NoBackoff(), RETRIES),
            )
        return client


def async_client() -> redis.asyncio.Redis:
    """The client of the running event loop; connections cannot be shared between loops."""
    loop = asyncio.get_running_loop()
    client = _async.get(loop)
    if client is None:
        client = _async[loop] = redis.asyncio.Redis.from_url(
            settings.REDIS_URL,
            socket_timeout=None,
            socket_connect_timeout=CONNECT_TIMEOUT,
            health_check_interval=HEALTH_CHECK_INTERVAL,
            max_connections=MAX_CONNECTIONS,
            retry=AsyncRetry(NoBackoff(), RETRIES),
        )
    return client
