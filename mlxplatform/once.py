"""One look at a time: whoever asks while a look is under way gets its outcome instead of a look of their own.

For things remembered for a moment: when that is over, a burst of requests would otherwise all look at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: The one who looked was cancelled; somebody else has to.
_AGAIN: Any = object()


class Once(Generic[T]):
    """Call it like ``look``; failures are shared as well. Calls of other event loops are not waited for."""

    def __init__(self, look: Callable[[], Awaitable[T]]) -> None:
        self._look = look
        self._running: asyncio.Future[T] | None = None

    async def __call__(self) -> T:
        loop = asyncio.get_running_loop()
        while self._running is not None and self._running.get_loop() is loop:
            outcome = await asyncio.shield(self._running)
            if outcome is not _AGAIN:
                return outcome
        mine: asyncio.Future[T] = loop.create_future()
        self._running = mine
        try:
            value = await self._look()
        except Exception as error:
            mine.set_exception(error)
            mine.exception()  # nobody else may have waited for it
            raise
        except BaseException:
            mine.set_result(_AGAIN)
            raise
        else:
            mine.set_result(value)
            return value
        finally:
            if self._running is mine:
                self._running = None
