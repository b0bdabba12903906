"""Django's handler with threads that are kept: what must not run on the event loop runs on one of a few, per request the same.

Django gives each request a thread of its own, started for its first database call or its own clean-up and joined by
another thread at the end; that was a third of what a short request cost this process. Requests that share a thread take
turns on it. Its database connection is closed at the end of a request as ever.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asgiref.sync import ThreadSensitiveContext
from django.core import signals
from django.core.handlers.asgi import ASGIHandler
from django.db import close_old_connections, reset_queries

#: Threads for the database work of requests. SQLite writes one at a time, and PostgreSQL counts connections.
THREADS = 16


class Handler(ASGIHandler):
    """One per process."""

    def __init__(self) -> None:
        super().__init__()
        # Each runs one call at a time, which is what keeps a request's database work in order.
        threads = [ThreadPoolExecutor(1, thread_name_prefix=f"request-{number}") for number in range(THREADS)]
        self._next_thread = itertools.cycle(threads)
        # At the start of a request there is nothing to close: the end of the last one has. A hop to a thread for nothing.
        signals.request_started.disconnect(reset_queries)
        signals.request_started.disconnect(close_old_connections)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise ValueError(f"not an HTTP connection: {scope['type']}")
        async with ThreadSensitiveContext(executor=next(self._next_thread)):
            await self.handle(scope, receive, send)
