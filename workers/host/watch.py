"""When a silent engine child counts as hung: pure decisions over looks at fixed intervals.

A child's outbox says each second how long its main thread has been in the same turn. A process that says nothing is
stopped or thrashing; one that speaks but does not turn hangs in a kernel. Both are killed and healed like any death.
Looks are counted, not clocks compared: a supervisor that was itself stopped must not take its own sleep for theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Seconds between two looks.
LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Patience:
    """Looks without a word, seconds in one turn (the longest honest one is a prefill of rows on a slow CPU), and
    seconds until a child is ready (big weights from a slow disk)."""

    silent_looks: int = 15
    turn_seconds: float = 180.0
    load_seconds: float = 900.0


class Watch:
    """One child's watch; owned by the thread that looks."""

    def __init__(self, patience: Patience = Patience()):
        self._patience = patience
        self._silent = 0

    def look(self, *, heard: bool, ready: bool, in_turn: float, age: float) -> str | None:
        """Why the child should be killed, None to go on. ``in_turn`` and ``age`` are seconds as last heard."""
        self._silent = 0 if heard else self._silent + 1
        if not ready:
            return "not ready in time" if age > self._patience.load_seconds else None
        if self._silent >= self._patience.silent_looks:
            return "silent"
        if in_turn > self._patience.turn_seconds:
            return "hangs in one turn"
        return None
