"""What is told at once when this web process begins to leave, before running requests have their time to end.

Applications add theirs when they are loaded: streams that only show what is kept elsewhere end then, since their readers take
them up again in the process that follows. It knows none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

_told: list[Callable[[], Coroutine[Any, Any, None]]] = []


def add(tell: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Register a coroutine function that is quick and deals with its own failures."""
    _told.append(tell)


async def begin() -> None:
    """The process leaves."""
    for tell in _told:
        await tell()
