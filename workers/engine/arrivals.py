"""Whether the next turn waits a moment because chats arrive in a bunch.

Where a turn takes a few milliseconds, sixteen chats that arrive together would each get a prefill of its own and decode
in small groups, and the processes that bring the rest of them would wait for a core meanwhile. Waiting for the bunch lets
them share turns. One that arrives alone is never held, nor is anybody on a model whose turns are long: there the turn
itself gathers who comes. Knows a clock, no mlx.
"""

from __future__ import annotations

#: Longest turn, seconds, beside which a wait is worth it.
QUICK = 0.01
#: Seconds without a newcomer after which a bunch is complete, and within which two arrivals are one.
GAP = 0.012
#: Seconds for which the first of a bunch waits at most.
MOST = 0.05
#: Weight of a new turn in the mean.
_WEIGHT = 0.2


class Arrivals:
    """Used by the engine's main thread only; times are monotonic seconds."""

    def __init__(self) -> None:
        self._turn = 1.0
        self._last = self._began = float("-inf")

    def came(self, now: float) -> None:
        """A chat has arrived."""
        if now - self._last > GAP or now - self._began > MOST:
            self._began = now
        self._last = now

    def turned(self, seconds: float) -> None:
        """A turn took so long."""
        self._turn += _WEIGHT * (seconds - self._turn)

    @property
    def quick(self) -> bool:
        """Whether turns are so short that nobody need be spared one."""
        return self._turn < QUICK

    def patience(self, now: float) -> float:
        """Seconds to wait for the next of a bunch, 0 for none."""
        if not self.quick or self._last == self._began:
            return 0.0
        return max(0.0, min(self._last + GAP, self._began + MOST) - now)
