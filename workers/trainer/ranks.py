"""How large an adapter each layer gets. Pure functions of numbers and of what the base's own files say.

``constant``: the same everywhere. ``by_bits``: layers packed to fewer bits need, and get, less; a quarter of the
bits is a quarter of the rank, and a layer in full precision gets the whole. ``by_kl``: by what packing a layer cost,
as the base's quality report measured it, from half to twice the rank; without such a report it is ``by_bits``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

#: No layer gets less.
LEAST = 2
#: Bits at which ``by_bits`` gives exactly the rank that was asked for.
FULL_BITS = 4
#: How far ``by_kl`` goes below and above.
LOWEST, HIGHEST = 0.5, 2.0


def by_bits(rank: int, names: Sequence[str], quantization: Mapping[str, Any] | None) -> dict[str, int]:
    """``quantization`` is the entry of the base's config.json; without one every layer gets ``rank``."""
    if not quantization:
        return dict.fromkeys(names, rank)
    found = {}
    for name in names:
        own = quantization.get(name)
        bits = quantization.get("bits") if own is None else own.get("bits") if isinstance(own, dict) else None
        found[name] = max(LEAST, math.ceil(rank * bits / FULL_BITS)) if isinstance(bits, int) else rank
    return found


def by_kl(rank: int, names: Sequence[str], divergence: Mapping[str, float]) -> dict[str, int]:
    """``divergence`` of each measured layer; others get ``rank``."""
    known = [divergence[name] for name in names if math.isfinite(divergence.get(name, math.nan))]
    middle = median(known) if known else 0.0
    found = {}
    for name in names:
        own = divergence.get(name, math.nan)
        share = min(max(own / middle, LOWEST), HIGHEST) if middle > 0 and math.isfinite(own) else 1.0
        found[name] = max(LEAST, math.ceil(rank * share))
    return found


def chosen(kind: str, rank: int, names: Sequence[str], source: Path) -> tuple[dict[str, int], str]:
    """Rank by layer, and what was done, where it was not what was asked for."""
    quantization = _json(source / "config.json").get("quantization")
    if kind == "by_kl":
        measured = (_json(source / "quantization_report.json").get("mixed") or {}).get("kl")
        if measured:
            return by_kl(rank, names, measured), ""
        return by_bits(rank, names, quantization), "The base has no measured sensitivities: ranks follow its bits."
    return by_bits(rank, names, quantization), ""


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
