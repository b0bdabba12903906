"""Drawing the next token for every row of the batch at once.

Rows with different settings, greedy ones among them, are sampled by one vectorised call. A row's randomness
is a pure function of its seed and its step, so it neither knows nor disturbs its neighbours, and a row that
moved to another batch or another engine goes on where it was. Nothing here raises during a step: settings
are brought into range when a row is made.

Order of work: penalties and bias (processors, per row, only where asked for), then greedy rows take the
largest logit; the others: top-k, then top-p and min-p on what is left, then XTC, then temperature or the
tone curve, then one uniform number per row picks from the cumulated distribution. Measured on 8 rows of
49,152 logits on one CPU core: sorting them all 42 ms, finding the 1,024 largest 5 ms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from mlxplatform.inference.contract import Sampling

#: Tokens a nucleus (top-p without top-k) is looked for in. Natural nuclei are far smaller; one that is
#: not loses its least likely members.
NUCLEUS_CANDIDATES = 2048

#: Temperatures below this are greedy: 1/T would overflow float32 differences into infinities.
COLDEST = 1e-4

_MASK64 = (1 << 64) - 1

Processor = Callable[[mx.array, mx.array], mx.array]


def uniform(seed: int, step: int, stream: int = 0) -> float:
    """A number in [0, 1) that depends on nothing else (splitmix64's finaliser over seed, step and stream)."""
    state = (seed * 0x9E3779B97F4A7C15 + step * 0xD1B54A32D192ED03 + stream * 0x8CB92BA72F3D8DD7 + 0x2545F4914F6CDD1D) & _MASK64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK64
    return ((state ^ (state >> 31)) >> 40) / float(1 << 24)


@dataclass(frozen=True)
class ToneCurve:
    """A piecewise curve on logits: plain temperature near the pivot, logarithmic beyond ``width`` nats of it.

    ``shoulder`` bends what is above the pivot, ``toe`` what is below; 0 leaves that side straight. The pivot
    lies ``pivot_offset`` nats under the best token. ``gain`` replaces 1/temperature when given.
    """

    width: float = 4.0
    shoulder: float = 4.0
    toe: float = 6.0
    pivot_offset: float = 6.0
    gain: float | None = None


@dataclass
class RowSampler:
    """How one sequence draws. ``step`` counts its draws, so a sequence taken up again starts where it stopped.

    Callable like an mlx-lm sampler on its own row, for generators that know nothing of batches of rows.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.0
    xtc_protected: tuple[int, ...] = ()
    curve: ToneCurve | None = None
    seed: int = 0
    step: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature < COLDEST or self.top_k == 1

    @property
    def shape(self) -> tuple[Any, ...]:
        """Everything but seed and step: equal shapes share their parameter arrays."""
        return (
            self.greedy, self.temperature, self.top_p, self.top_k, self.min_p,
            self.xtc_probability, self.xtc_threshold, self.xtc_protected, self.curve,
        )  # fmt: skip

    def __call__(self, logprobs: mx.array) -> mx.array:
        return sample(logprobs, [self])


def row_sampler(sampling: Sampling, *, vocab_size: int, protected: Sequence[int] = (), step: int = 0) -> RowSampler:
    """A row's sampler from resolved settings. ``protected`` ids (end of sequence, newline) survive XTC."""
    top_p = sampling.top_p or 0.0
    curve = None
    hlg = sampling.hlg
    if hlg and hlg.get("enabled", True):
        known = {
            name: float(hlg[name]) for name in ("width", "shoulder", "toe", "pivot_offset", "gain") if hlg.get(name) is not None
        }
        curve = ToneCurve(**known)
    return RowSampler(
        temperature=max(0.0, sampling.temperature or 0.0),
        top_p=top_p if 0.0 < top_p < 1.0 else 1.0,
        # Every token is as good as no limit; a k past the vocabulary has killed other servers.
        top_k=sampling.top_k if sampling.top_k and 0 < sampling.top_k < vocab_size else 0,
        min_p=min(1.0, max(0.0, sampling.min_p or 0.0)),
        xtc_probability=sampling.xtc_probability or 0.0,
        xtc_threshold=sampling.xtc_threshold or 0.0,
        xtc_protected=tuple(sorted({token for token in protected if 0 <= token < vocab_size})),
        curve=curve,
        seed=sampling.seed or 0,
        step=step,
    )


def greedy_sampler(logits: mx.array) -> mx.array:
    return mx.argmax(logits, axis=-1)


@dataclass
class _Group:
    """Rows that are drawn together, and column vectors of their settings.

    Rows with top-k or top-p draw from a ranked shortlist, the others from the whole vocabulary. They never
    share a group: the order tokens are cumulated in would depend on the neighbours, and a seed's text with it.
    """

    members: list[int]
    rows: list[RowSampler]
    index: mx.array
    temperature: mx.array
    top_p: mx.array
    min_p: mx.array
    #: 0-based rank of the last token top-k keeps, and whether top-k is on at all.
    last_kept: mx.array
    limited: mx.array
    #: Length of the shortlist; 0 for a group without one.
    shortlist: int
    any_top_p: bool
    any_unlimited_top_p: bool
    any_min_p: bool
    any_xtc: bool
    any_curve: bool


def _column(values: list[float]) -> mx.array:
    return mx.array(values, dtype=mx.float32)[:, None]


def _group(members: list[int], every: Sequence[RowSampler], shortlist: int) -> _Group:
    rows = [every[index] for index in members]
    return _Group(
        members=members,
        rows=rows,
        index=mx.array(members, dtype=mx.int32),
        temperature=_column([row.temperature for row in rows]),
        top_p=_column([row.top_p for row in rows]),
        min_p=_column([math.log(row.min_p) if row.min_p > 0 else -math.inf for row in rows]),
        last_kept=mx.array([[(row.top_k or shortlist) - 1] for row in rows], dtype=mx.int32),
        limited=mx.array([[row.top_k > 0] for row in rows]),
        shortlist=shortlist,
        any_top_p=any(row.top_p < 1 for row in rows),
        any_unlimited_top_p=any(row.top_p < 1 and not row.top_k for row in rows),
        any_min_p=any(row.min_p > 0 for row in rows),
        any_xtc=any(row.xtc_probability > 0 for row in rows),
        any_curve=any(row.curve is not None for row in rows),
    )


def _groups(rows: Sequence[RowSampler], vocab: int) -> list[_Group]:
    """The batch's sampled rows by the way they are drawn; greedy rows are in none."""
    drawn = [index for index, row in enumerate(rows) if not row.greedy]
    ranked = [index for index in drawn if rows[index].top_k or rows[index].top_p < 1]
    free = [index for index in drawn if index not in set(ranked)]
    out = []
    if ranked:
        width = max(rows[index].top_k or NUCLEUS_CANDIDATES for index in ranked)
        out.append(_group(ranked, rows, min(width, vocab)))
    if free:
        out.append(_group(free, rows, 0))
    return out


@dataclass
class BatchSampler:
    """Samples batches, remembering the parameter arrays of the last one. One owner, one thread."""

    _shapes: tuple[Any, ...] = ()
    _groups: list[_Group] = field(default_factory=list)

    def sample(self, logits: mx.array, rows: Sequence[RowSampler]) -> mx.array:
        """Token ids [rows] (lazy) from logits [rows, vocabulary]; log-probabilities will do as well."""
        shapes = (logits.shape[-1], *(row.shape for row in rows))
        if shapes != self._shapes:
            self._groups, self._shapes = _groups(rows, logits.shape[-1]), shapes
        return _draw(logits, rows, self._groups)


def sample(logits: mx.array, rows: Sequence[RowSampler]) -> mx.array:
    """As :meth:`BatchSampler.sample`, remembering nothing."""
    return _draw(logits, rows, _groups(rows, logits.shape[-1]))


def _draw(logits: mx.array, rows: Sequence[RowSampler], groups: list[_Group]) -> mx.array:
    numbers = [uniform(row.seed, row.step) for row in rows]
    coins = [uniform(row.seed, row.step, 1) for row in rows]
    for row in rows:
        row.step += 1
    if len(groups) == 1 and len(groups[0].members) == len(rows):
        return _pick(logits.astype(mx.float32), groups[0], numbers, coins)
    tokens = greedy_sampler(logits)
    for group in groups:
        own = [numbers[index] for index in group.members]
        tokens[group.index] = _pick(logits[group.index].astype(mx.float32), group, own, [coins[index] for index in group.members])
    return tokens


def _pick(scores: mx.array, group: _Group, numbers: list[float], coins: list[float]) -> mx.array:
    ids: mx.array | None = None
    if group.shortlist:
        ids = _largest(scores, group.shortlist)
        ranked = mx.take_along_axis(scores, ids, axis=-1)
        keep = mx.arange(group.shortlist)[None] <= group.last_kept
        if group.any_top_p:
            keep = keep & _nucleus(scores, ranked, keep, group)
        scores = mx.where(keep, ranked, -mx.inf)
    if group.any_min_p:
        scores = mx.where(scores >= scores.max(axis=-1, keepdims=True) + group.min_p, scores, -mx.inf)
    if group.any_xtc:
        scores = _xtc(scores, ids, group.rows, coins)
    picked = _at(_weights(scores, group), numbers)
    return picked if ids is None else mx.take_along_axis(ids, picked[:, None], axis=-1)[:, 0].astype(mx.uint32)


def _largest(scores: mx.array, width: int) -> mx.array:
    """Ids of the ``width`` largest scores of each row, best first."""
    if width >= scores.shape[-1]:
        return mx.argsort(-scores, axis=-1)
    found = mx.argpartition(-scores, kth=width - 1, axis=-1)[..., :width]
    order = mx.argsort(-mx.take_along_axis(scores, found, axis=-1), axis=-1)
    return mx.take_along_axis(found, order, axis=-1)


def _nucleus(scores: mx.array, ranked: mx.array, keep: mx.array, group: _Group) -> mx.array:
    """Which ranked candidates are in the nucleus: those with less than top-p of the mass above them."""
    shortlist = mx.where(keep, ranked, -mx.inf)
    total = mx.logsumexp(shortlist, axis=-1, keepdims=True)
    if group.any_unlimited_top_p:
        total = mx.where(group.limited, total, mx.logsumexp(scores, axis=-1, keepdims=True))
    mass = mx.exp(shortlist - total)
    above = mx.cumsum(mass, axis=-1) - mass
    # The best token always stays, whatever rounding says.
    return (above < group.top_p) | (mx.arange(ranked.shape[-1])[None] == 0)


def _xtc(scores: mx.array, ids: mx.array | None, rows: list[RowSampler], coins: list[float]) -> mx.array:
    """Exclude top choices: with its probability, a row loses every token above its threshold but the least likely one."""
    active = mx.array([[coin < row.xtc_probability] for coin, row in zip(coins, rows, strict=True)])
    threshold = _column([row.xtc_threshold for row in rows])
    probabilities = mx.softmax(scores, axis=-1)
    above = probabilities > threshold
    least = mx.where(above, probabilities, mx.inf).min(axis=-1, keepdims=True)
    lost = above & (probabilities > least)
    protected = sorted({token for row in rows for token in row.xtc_protected})
    if protected:
        if ids is None:
            lost[:, mx.array(protected)] = False
        else:
            lost = lost & ~(ids[..., None] == mx.array(protected, dtype=ids.dtype)).any(axis=-1)
    return mx.where(active & lost, -mx.inf, scores)


def _weights(scores: mx.array, group: _Group) -> mx.array:
    """Unnormalised probabilities, the best token's near 1."""
    best = scores.max(axis=-1, keepdims=True)
    scaled = (scores - best) / group.temperature
    if group.any_curve:
        rows = group.rows
        curves = [row.curve or ToneCurve() for row in rows]
        gain = _column([curve.gain or 1.0 / row.temperature for curve, row in zip(curves, rows, strict=True)])
        bent = _bend(scores, best, curves, gain)
        is_bent = mx.array([[row.curve is not None] for row in rows])
        scaled = mx.where(is_bent, bent - bent.max(axis=-1, keepdims=True), scaled)
    return mx.exp(scaled)


def _bend(scores: mx.array, best: mx.array, curves: list[ToneCurve], gain: mx.array) -> mx.array:
    width = _column([curve.width for curve in curves])
    shoulder = _column([curve.shoulder for curve in curves])
    toe = _column([curve.toe for curve in curves])
    offset = scores - (best - _column([curve.pivot_offset for curve in curves]))
    past = mx.abs(offset) - width
    beyond = mx.maximum(past, 0.0)
    side = mx.where(offset > 0, shoulder, toe)
    safe = mx.maximum(side, 1e-6)
    bent = mx.where(side > 0, safe * mx.log1p(beyond / safe), beyond)
    magnitude = mx.where(past > 0, width + bent, mx.abs(offset))
    # Impossible tokens stay impossible: the logarithm of an infinite distance would be infinite as well, but
    # not on every backend.
    return mx.where(scores == -mx.inf, -mx.inf, gain * mx.sign(offset) * magnitude)


def _at(weights: mx.array, numbers: list[float]) -> mx.array:
    """Column where the cumulated weight passes each row's number."""
    cumulated = mx.cumsum(weights, axis=-1)
    total = cumulated[:, -1:]
    target = mx.array(numbers, dtype=mx.float32)[:, None] * total
    column = (cumulated <= target).sum(axis=-1)
    # Rounding may put the target on the total itself; the last token with any weight is then meant.
    last = mx.argmax(cumulated >= total, axis=-1)
    return mx.minimum(column, last).astype(mx.uint32)
