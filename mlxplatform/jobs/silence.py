"""How long others have shown nothing new, judged without any wall clock.

Each of the watched shows a sign (a beat count, a time it wrote): while the sign stays the same, silence grows by the
steady time between two looks of ours, but by no more than ``most`` at once. So a clock that is wrong or set kills
nobody, and neither does a watcher that was itself stopped, or asleep with the whole machine. Pure but for the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


class Silence:
    """Of one kind of others; whoever is missing from a look is forgotten."""

    def __init__(self, most: float, clock: Callable[[], float] | None = None) -> None:
        self._most = most
        self._clock = clock or time.monotonic
        self._looked = self._clock()
        self._known: dict[str, tuple[object, float]] = {}

    def look(self, signs: Mapping[str, object]) -> dict[str, float]:
        """Seconds of silence of each, given what it shows now."""
        now = self._clock()
        passed, self._looked = min(now - self._looked, self._most), now
        known: dict[str, tuple[object, float]] = {}
        for name, sign in signs.items():
            shown, silent = self._known.get(name, (None, 0.0))
            known[name] = (sign, silent + passed if name in self._known and shown == sign else 0.0)
        self._known = known
        return {name: silent for name, (_, silent) in known.items()}
