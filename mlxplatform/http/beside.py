"""Work that runs beside the answering of requests, for as long as the web process serves.

Applications add theirs when they are loaded; the server starts it once it listens. It knows none of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

_work: list[Callable[[], Coroutine[Any, Any, None]]] = []


def add(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Register a coroutine function that runs for ever and deals with its own failures."""
    _work.append(work)


def start() -> list[asyncio.Task[None]]:
    """Start all of it on the running loop; keep the tasks, or they are collected."""
    return [asyncio.get_running_loop().create_task(work()) for work in _work]
