"""One thread with one database connection for a coroutine that needs SQL.

Django refuses its ORM inside a running event loop, and a pool of threads would keep a connection each. An
orchestrator does all its SQL (its job context included) here, one call after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from django.db import connections

P = ParamSpec("P")
T = TypeVar("T")


class SqlThread:
    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"sql-{name}")

    async def __call__(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(*args, **kwargs))

    async def close(self) -> None:
        """Close the thread's connections and end it. Waits for what runs."""
        await asyncio.get_running_loop().run_in_executor(self._executor, connections.close_all)
        self._executor.shutdown(wait=True)
