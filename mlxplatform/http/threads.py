"""Django's handler with threads that are kept: what must not run on the event loop runs on a thread of the request's own.

Django starts such a thread for each request, at its first database call or its own clean-up, and another one to join it at
the end; that was a third of what a short request cost this process. Here a request borrows a thread and the next one gets it
after that. Its database connection is closed at the end of a request as ever.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asgiref.sync import ThreadSensitiveContext
from django.core import signals
from django.core.handlers.asgi import ASGIHandler
from django.db import close_old_connections, reset_queries

#: Threads kept for later requests; what a burst needed beyond them ends with it.
KEPT = 32


class Handler(ASGIHandler):
    """One per process, used from its event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._free: list[ThreadPoolExecutor] = []
        # At the start of a request there is nothing to close: the end of the last one has. A hop to a thread for nothing.
        signals.request_started.disconnect(reset_queries)
        signals.request_started.disconnect(close_old_connections)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise ValueError(f"not an HTTP connection: {scope['type']}")
        # One call at a time on one thread, which is what keeps a request's database work in order.
        thread = self._free.pop() if self._free else ThreadPoolExecutor(1, thread_name_prefix="request")
        try:
            async with ThreadSensitiveContext(executor=thread):
                await self.handle(scope, receive, send)
        finally:
            if len(self._free) < KEPT:
                self._free.append(thread)
            else:
                thread.shutdown(wait=False)
