"""Measurements as data: medians, intervals, and the lines ``make bench`` prints.

A ratio is measured as interleaved pairs in one run, so that a machine that is slow for a minute slows both sides. Its
interval is the range of the middle pairs; a bar is met when the interval reaches it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

#: Fewest interleaved pairs of a ratio.
PAIRS = 5


@dataclass(frozen=True)
class Measured:
    """A median with the interval between the lower and the upper quartile."""

    median: float
    low: float
    high: float


def measured(values: Sequence[float]) -> Measured:
    if len(values) < 2:
        return Measured(values[0], values[0], values[0])
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return Measured(statistics.median(values), low, high)


def line(what: str, value: Measured, unit: str, bar: str) -> str:
    return f"{what:<58} {value.median:9.3f} {unit:<8} [{value.low:.3f} … {value.high:.3f}]   bar {bar}"
