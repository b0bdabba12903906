"""One look at a time, shared by whoever asks meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from mlxplatform.once import Once


class Look:
    """A look that lasts until it is let go, and is counted."""

    def __init__(self, error: Exception | None = None) -> None:
        self.count, self.go, self.error = 0, asyncio.Event(), error

    async def __call__(self) -> int:
        self.count += 1
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return self.count


async def started(look: Look, count: int = 1) -> None:
    while look.count < count:
        await asyncio.sleep(0)


async def test_a_burst_looks_once_and_the_next_one_again() -> None:
    look = Look()
    once = Once(look)
    burst = [asyncio.create_task(once()) for _ in range(16)]
    await started(look)
    look.go.set()
    assert await asyncio.gather(*burst) == [1] * 16
    assert await once() == 2


async def test_a_failure_is_everybodys_and_is_not_remembered() -> None:
    look = Look(ValueError("down"))
    once = Once(look)
    burst = [asyncio.create_task(once()) for _ in range(3)]
    await started(look)
    look.go.set()
    outcomes = await asyncio.gather(*burst, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["down"] * 3
    look.error = None
    assert await once() == 2


async def test_who_is_cancelled_while_looking_leaves_it_to_another() -> None:
    look = Look()
    once = Once(look)
    first = asyncio.create_task(once())
    await started(look)
    second, third = asyncio.create_task(once()), asyncio.create_task(once())
    await asyncio.sleep(0)
    first.cancel()
    await started(look, 2)
    third.cancel()  # one who only waits takes nobody else down
    look.go.set()
    assert await second == 2
    with pytest.raises(asyncio.CancelledError):
        await first
    with pytest.raises(asyncio.CancelledError):
        await third
