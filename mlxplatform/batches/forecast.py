"""When a batch will be done, from how fast its lines finished lately: an estimate with an interval, or nothing.

Lines finish in waves, so single gaps say little; rates over a few equal slices of the last minutes do. The interval
is that of the mean rate (about 95 %), widened to what the fastest and slowest slice would give while there are few.
Pure: times are passed in.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Any

#: Seconds of one slice and slices looked at: the last five minutes.
SLICE_S = 10.0
SLICES = 30
#: Slices before anything is said.
FEWEST = 3


class Forecaster:
    """Fed with the number of finished lines; knows nothing of batches."""

    def __init__(self, now: float, finished: int):
        self._start, self._count = now, finished
        self._rates: deque[float] = deque(maxlen=SLICES)

    def note(self, now: float, finished: int) -> None:
        elapsed = now - self._start
        if elapsed >= SLICE_S:
            self._rates.append((finished - self._count) / elapsed)
            self._start, self._count = now, finished

    def estimate(self, now: float, left: int) -> dict[str, Any] | None:
        """Unix seconds of the expected end with its bounds, and lines per second."""
        rates = list(self._rates)
        if len(rates) < FEWEST:
            return None
        mean = statistics.fmean(rates)
        if mean <= 0:
            return None
        error = 2 * statistics.stdev(rates) / len(rates) ** 0.5
        low, high = max(mean - error, min(rates), mean / 10), max(mean + error, mean)
        return {
            "done_at": round(now + left / mean),
            "earliest": round(now + left / high),
            "latest": round(now + left / low),
            "lines_per_second": round(mean, 3),
        }
