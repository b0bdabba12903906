"""Run a stream of calls to their one result each, a window of them at a time.

The convenience form of :class:`mlxplatform.rows.pool.RowPool` for work whose calls do not depend on each other,
as a batch's lines. Results come in the order in which they finish, never twice, finished ones at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence

from mlxplatform.rows.contract import RowRequest, RowResult
from mlxplatform.rows.pool import WINDOW, Context, RowPool


async def run_rows(
    ctx: Context,
    calls: AsyncIterable[RowRequest] | Iterable[RowRequest],
    *,
    ancestors: Sequence[str] = (),
    window: int = WINDOW,
) -> AsyncIterator[RowResult]:
    """Yield every call's result. ``calls`` is read as far ahead as the window, in this event loop: keep it light.

    Raises:
        whatever ``ctx.check()`` raises when the job is cancelled, paused or no longer ours; the unfinished
        chunks are then stopped and their calls stay pending for a later resume.
    """
    async with RowPool(ctx, ancestors=ancestors, window=window) as pool:
        running: set[asyncio.Task[RowResult]] = set()
        source = _async(calls)
        exhausted = False
        try:
            while running or not exhausted:
                while not exhausted and len(running) < window:
                    try:
                        row = await anext(source)
                    except StopAsyncIteration:
                        exhausted = True
                        break
                    running.add(asyncio.create_task(pool.call(row)))
                if not running:
                    break
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def _async(calls: AsyncIterable[RowRequest] | Iterable[RowRequest]) -> AsyncIterator[RowRequest]:
    if isinstance(calls, AsyncIterable):
        async for call in calls:
            yield call
    else:
        for call in calls:
            yield call
