"""What a full run will take, from what a preview took. Pure arithmetic; intervals where the sample is small."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from mlxplatform.datasets.options import FRUITLESS_ROUNDS

#: Normal quantile of the two-sided 90 % interval.
Z = 1.645


@dataclass(frozen=True)
class Sample:
    """A preview's outcome: sources run, rows made and accepted, tokens, model calls, and seconds."""

    sources: int
    made: int
    accepted: int
    prompt_tokens: int
    completion_tokens: int
    calls: int
    seconds: float


def proportion(hits: float, of: float) -> tuple[float, float, float]:
    """(rate, low, high) by Wilson's interval, which stays sensible for few and for extreme counts."""
    if of == 0:
        return 0.0, 0.0, 1.0
    rate = hits / of
    centre = (rate + Z * Z / (2 * of)) / (1 + Z * Z / of)
    half = Z * math.sqrt(rate * (1 - rate) / of + Z * Z / (4 * of * of)) / (1 + Z * Z / of)
    return rate, max(centre - half, 0.0), min(centre + half, 1.0)


def yet_to_come(rate: float, seen: float, rows: float) -> tuple[float, float]:
    """(low, high) of how many of ``rows`` further rows will be accepted, after ``rate`` of ``seen`` were.

    Wider than the rate's own interval: what comes is few rows too, and varies by itself.
    """
    if rows <= 0:
        return 0.0, 0.0
    weight = seen + Z * Z
    centre = (rate * seen + Z * Z / 2) / weight
    half = Z * math.sqrt(rows * centre * (1 - centre) * (1 + rows / weight))
    return max(rows * centre - half, 0.0), min(rows * centre + half, rows)


def forecast(sample: Sample, sources: int, target: int | None, slots: int, rounds: int = 1) -> dict[str, Any]:
    """The full run's sources, rows, tokens and time. ``rounds`` over the sources are made at most towards a target.

    Rows of one source share its luck, so the sample counts as many trials as it has sources. A preview of few sources
    does not fill the engine's slots, so its time per source is an upper bound; the lower one assumes that the batch
    fills up. Repeats become more frequent in a longer run, which no sample of its beginning shows.
    """
    made = max(sample.made, sample.accepted)
    seen = min(made, sample.sources)
    share = sample.accepted / made if made else 0.0
    rate, low, high = proportion(share * seen, seen)
    rounds = rounds if sample.accepted else min(rounds, FRUITLESS_ROUNDS)
    per_source = made / sample.sources if sample.sources else 0.0
    needed, fewest, most = (_sources_for(target, per_source * r, sources * rounds) or sources for r in (rate, high, low))
    further = per_source * (needed - sample.sources)
    together = max(per_source, 1.0)
    come_low, come_high = (together * trials for trials in yet_to_come(rate, seen, further / together))
    rows = [sample.accepted + max(rate * further, 0.0), sample.accepted + come_low, sample.accepted + come_high]
    if target is not None:
        # The run goes on until it has them, as long as its rounds last.
        rows = [min(target, sources * rounds * per_source * r) for r in (rate, low, high)]
    scale = needed / sample.sources if sample.sources else 0.0
    filling = min(max(slots / sample.sources, 1.0), 8.0) if sample.sources else 1.0
    each = sample.seconds / sample.sources if sample.sources else 0.0
    return {
        "sources": needed,
        "rows": {"expected": round(rows[0]), "low": math.floor(rows[1]), "high": math.ceil(rows[2])},
        "acceptance": {"rate": round(rate, 3), "low": round(low, 3), "high": round(high, 3)},
        "calls": round(sample.calls * scale),
        "prompt_tokens": round(sample.prompt_tokens * scale),
        "completion_tokens": round(sample.completion_tokens * scale),
        "seconds": {"low": round(each * fewest / filling, 1), "high": round(each * most, 1)},
        "from": asdict(sample),
    }


def _sources_for(target: int | None, rows_each: float, available: int) -> int | None:
    """Sources that a number of rows takes, of those there are; None without a target."""
    if target is None:
        return None
    return min(math.ceil(target / rows_each), available) if rows_each > 0 else available
