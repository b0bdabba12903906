"""Which layer gets how many bits, from what each choice costs in divergence. A pure function of numbers.

Everything starts at the lowest width. Then a floor: in each transformer block the most sensitive layers are
raised once (two attention projections where there are at least four, else one). Then the steps that save the
most divergence per added bit, until the average reaches the target. Last, a guard: long runs of blocks that
are mostly at the lowest width get one layer raised in every third block, because errors of neighbours add up.

Embeddings, the head, routers, shared experts and the first and last block count a hundredfold: everything
that follows, or everything that is said, goes through them.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PROTECTION = 100.0
#: A divergence that could not be computed counts as this many times the largest one, more for fewer bits.
UNKNOWN_FACTOR = 10.0
#: Consecutive blocks mostly at the lowest width that are tolerated, and how often one is raised beyond that.
RUN_LIMIT, RUN_STRIDE = 3, 3
_BLOCK = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_SENSITIVE = re.compile(r"router|gate$|shared_expert")
_ATTENTION = re.compile(r"attn|attention")


@dataclass(frozen=True)
class Layer:
    """``divergence`` by width: what quantizing only this layer to it costs."""

    name: str
    parameters: int
    divergence: Mapping[int, float]


def allocate(layers: Sequence[Layer], widths: Sequence[int], target: float, overhead: float) -> dict[str, int]:
    """Bits by layer. ``target`` is the least average of bits plus ``overhead`` (scales) over all weights."""
    widths = sorted(widths)
    costs = _costs(layers, widths)
    sizes = {layer.name: layer.parameters for layer in layers}
    chosen = {layer.name: widths[0] for layer in layers}
    for name in _floor(layers, costs, widths):
        chosen[name] = widths[1]
    total = sum(sizes.values())
    spent = sum(chosen[name] * sizes[name] for name in sizes)
    steps = [step for name in chosen if (step := _step(name, chosen[name], widths, costs, sizes))]
    heapq.heapify(steps)
    while steps and spent / total + overhead < target:
        _, name, before, after = heapq.heappop(steps)
        chosen[name] = after
        spent += (after - before) * sizes[name]
        following = _step(name, after, widths, costs, sizes)
        if following:
            heapq.heappush(steps, following)
    for name in _guard(layers, chosen, costs, widths):
        chosen[name] = widths[1]
    return chosen


def raised(
    sensitivities: Mapping[str, float], sizes: Mapping[str, int], widths: tuple[int, int], target: float, overhead: float
) -> set[str]:
    """The layers that get the higher of two widths: from the most sensitive down, each that an average of ``target`` pays for."""
    low, high = widths
    left = (target - low - overhead) * sum(sizes.values())
    chosen: set[str] = set()
    for name in sorted(sensitivities, key=lambda name: (-sensitivities[name], name)):
        cost = (high - low) * sizes[name]
        if cost <= left:
            chosen.add(name)
            left -= cost
    return chosen


def average(chosen: Mapping[str, int], layers: Sequence[Layer], overhead: float) -> float:
    """Bits per weight over the quantized layers, scales included."""
    total = sum(layer.parameters for layer in layers)
    return sum(chosen[layer.name] * layer.parameters for layer in layers) / total + overhead


def block_of(name: str) -> int | None:
    found = _BLOCK.search(name)
    return int(found[1]) if found else None


def _costs(layers: Sequence[Layer], widths: Sequence[int]) -> dict[str, dict[int, float]]:
    """Divergences with unknown ones replaced and protected layers weighted."""
    finite = [kl for layer in layers for kl in layer.divergence.values() if math.isfinite(kl)]
    largest = max(finite, default=1.0)
    blocks = [block for layer in layers if (block := block_of(layer.name)) is not None]
    ends = {min(blocks), max(blocks)} if blocks else set()
    costs: dict[str, dict[int, float]] = {}
    for layer in layers:
        block = block_of(layer.name)
        weight = PROTECTION if block is None or block in ends or _SENSITIVE.search(layer.name) else 1.0
        costs[layer.name] = {
            bits: weight * (kl if math.isfinite(kl) else UNKNOWN_FACTOR * largest * widths[-1] / bits)
            for bits, kl in layer.divergence.items()
        }
    return costs


def _step(
    name: str, at: int, widths: Sequence[int], costs: Mapping[str, Mapping[int, float]], sizes: Mapping[str, int]
) -> tuple[float, str, int, int] | None:
    """The next raise of a layer as (-efficiency, name, from, to), or None when it gains nothing."""
    if at == widths[-1]:
        return None
    after = widths[widths.index(at) + 1]
    gain = costs[name][at] - costs[name][after]
    return (-gain / ((after - at) * sizes[name]), name, at, after) if gain > 0 else None


def _floor(layers: Sequence[Layer], costs: Mapping[str, Mapping[int, float]], widths: Sequence[int]) -> list[str]:
    if len(widths) < 2:
        return []
    blocks: dict[int, list[str]] = defaultdict(list)
    for layer in layers:
        block = block_of(layer.name)
        if block is not None:
            blocks[block].append(layer.name)
    raised = []
    for names in blocks.values():
        ranked = sorted(names, key=lambda name: (-costs[name][widths[0]], name))
        attention = [name for name in ranked if _ATTENTION.search(name)]
        raised += attention[:2] if len(attention) >= 4 else (attention or ranked)[:1]
    return raised


def _guard(
    layers: Sequence[Layer], chosen: Mapping[str, int], costs: Mapping[str, Mapping[int, float]], widths: Sequence[int]
) -> list[str]:
    if len(widths) < 2:
        return []
    low: dict[int, list[str]] = defaultdict(list)
    count: dict[int, int] = defaultdict(int)
    for layer in layers:
        block = block_of(layer.name)
        if block is not None:
            count[block] += 1
            if chosen[layer.name] == widths[0]:
                low[block].append(layer.name)
    raised, run = [], 0
    for block in sorted(count):
        run = run + 1 if 2 * len(low[block]) > count[block] else 0
        if run > RUN_LIMIT and (run - RUN_LIMIT) % RUN_STRIDE == 0:
            raised.append(min(low[block], key=lambda name: (-costs[name][widths[0]], name)))
    return raised
