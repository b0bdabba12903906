"""What a full run will take, from what a preview took. Pure arithmetic; intervals where the sample is small."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

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


def proportion(hits: int, of: int) -> tuple[float, float, float]:
    """(rate, low, high) by Wilson's interval, which stays sensible for few and for extreme counts."""
    if of == 0:
        return 0.0, 0.0, 1.0
    rate = hits / of
    centre = (rate + Z * Z / (2 * of)) / (1 + Z * Z / of)
    half = Z * math.sqrt(rate * (1 - rate) / of + Z * Z / (4 * of * of)) / (1 + Z * Z / of)
    return rate, max(centre - half, 0.0), min(centre + half, 1.0)


def forecast(sample: Sample, sources: int, target: int | None, slots: int) -> dict[str, Any]:
    """The full run's sources, rows, tokens and time.

    A preview of few sources does not fill the engine's slots, so its time per source is an upper bound; the lower
    one assumes that the batch fills up.
    """
    rate, low, high = proportion(sample.accepted, max(sample.made, sample.accepted))
    per_source = sample.made / sample.sources if sample.sources else 0.0
    needed = sources
    if target is not None and per_source * rate > 0:
        needed = math.ceil(target / (per_source * rate))
    share = needed / sample.sources if sample.sources else 0.0
    slow = sample.seconds * share
    filling = min(max(slots / sample.sources, 1.0), 8.0) if sample.sources else 1.0
    made = per_source * needed
    return {
        "sources": needed,
        "rows": {"expected": round(made * rate), "low": math.floor(made * low), "high": math.ceil(made * high)},
        "acceptance": {"rate": round(rate, 3), "low": round(low, 3), "high": round(high, 3)},
        "calls": round(sample.calls * share),
        "prompt_tokens": round(sample.prompt_tokens * share),
        "completion_tokens": round(sample.completion_tokens * share),
        "seconds": {"low": round(slow / filling, 1), "high": round(slow, 1)},
        "from": asdict(sample),
    }
