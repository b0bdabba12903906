"""What a host does when its machine runs out of memory, whoever took it: give back, unload, then refuse.

One look a second, one measure a look, the mildest first: engines drop half of their prompt caches and their free
buffers; then the idle, unpinned model used longest ago leaves memory, one a look; then nothing new is admitted, and
the refusal carries the numbers. What runs is never touched. Each look decides anew, so nothing latches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import structlog

from mlxplatform.inference.contract import Refusal
from workers.engine.platform import Memory, read_memory

log = structlog.get_logger(__name__)

#: The floor is left behind when this much more than it is free, so that a measure is not undone by its own success.
RELIEF = 1.25
#: Seconds a refused client is told to wait.
RETRY_AFTER = 10

MIB = 1024 * 1024


class House(Protocol):
    """What can be done about it."""

    pressure: Refusal | None

    def shrink(self) -> bool:
        """Caches; False when no engine runs."""

    def unload_one(self) -> bool:
        """The idle unpinned model used longest ago; False when there is none."""


class Pressure:
    """Owned by the thread that looks. ``floor`` is the share of the machine's memory that stays free; 0: never looks."""

    def __init__(self, house: House, floor: float, read: Callable[[], Memory | None] = read_memory):
        self._house, self._floor, self._read = house, floor, read
        self._shrunk = False
        #: What the last look saw.
        self.seen: Memory | None = None

    def look(self) -> None:
        memory = self.seen = self._read()
        if memory is None or not self._floor:
            return
        floor = int(memory.total * self._floor)
        if memory.available >= floor * RELIEF and not memory.strained:
            self._shrunk = False
            self._house.pressure = None
            return
        if memory.available >= floor and not memory.strained:
            return
        if not self._shrunk:
            self._shrunk = True
            if self._house.shrink():
                log.warning("memory.low", available_mb=memory.available // MIB, floor_mb=floor // MIB, measure="caches")
                return
        if self._house.unload_one():
            log.warning("memory.low", available_mb=memory.available // MIB, floor_mb=floor // MIB, measure="unload")
            return
        if self._house.pressure is None:
            log.error("memory.low", available_mb=memory.available // MIB, floor_mb=floor // MIB, measure="refuse")
        self._house.pressure = _refusal(memory, floor)


def _refusal(memory: Memory, floor: int) -> Refusal:
    return Refusal(
        503,
        "memory_admission",
        f"The machine has {memory.available // MIB} of {memory.total // MIB} MiB free and keeps {floor // MIB} MiB; "
        "nothing new is started until other programs give memory back.",
        retry_after=RETRY_AFTER,
    )
