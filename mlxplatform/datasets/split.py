"""Which rows train and which validate. Never the same row in both."""

from __future__ import annotations

import math


def split_at(rows: int, valid_fraction: float = 0.1) -> int:
    """Rows before this index train, the others validate; at least one trains, and a single row only trains."""
    # Nine tenths of an integer must not lose a row to binary rounding (0.9 * 10 is 9.0, 0.7 * 10 is 7.000…01).
    return max(1, math.floor(rows * (1 - valid_fraction) + 1e-9)) if rows else 0
