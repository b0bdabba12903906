"""Near duplicates by MinHash: the share of word shingles two rows have in common, estimated.

Signatures are computed with numpy for a block of shingles at once and banded into buckets; only rows that meet in
a bucket are compared. 100,000 rows take some seconds and some hundred bytes each.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from mlxplatform.datasets import rowtext
from mlxplatform.datasets.filters.distinct import Verdict, words

#: Hash functions, and words in a shingle.
PERMUTATIONS = 128
SHINGLE = 3
_rng = np.random.Generator(np.random.PCG64(20240229))
#: Multiply-and-add in 64-bit wrap-around arithmetic, top 32 bits kept: universal enough, and a few ns each.
_FACTORS = _rng.integers(1, 2**63, PERMUTATIONS, dtype=np.uint64) | np.uint64(1)
_OFFSETS = _rng.integers(0, 2**63, PERMUTATIONS, dtype=np.uint64)


def shingles(text: str) -> np.ndarray:
    """Distinct 32-bit hashes of the text's word shingles; a short text is one shingle."""
    tokens = words(text)
    if len(tokens) <= SHINGLE:
        return np.array([zlib.crc32(" ".join(tokens).encode("utf-8", "surrogatepass"))], dtype=np.uint64)
    joined = {" ".join(tokens[i : i + SHINGLE]) for i in range(len(tokens) - SHINGLE + 1)}
    return np.fromiter((zlib.crc32(s.encode("utf-8", "surrogatepass")) for s in joined), dtype=np.uint64, count=len(joined))


def signature(hashes: np.ndarray) -> np.ndarray:
    """The MinHash signature, 32 bits a permutation."""
    mixed = hashes[:, None] * _FACTORS[None, :] + _OFFSETS[None, :]
    return (mixed >> np.uint64(32)).min(axis=0).astype(np.uint32)


def bands(threshold: float) -> tuple[int, int]:
    """(bands, rows per band) whose meeting point is closest below ``threshold``."""
    options = [(PERMUTATIONS // r, r) for r in (1, 2, 4, 8, 16, 32)]
    below = [(b, r) for b, r in options if (1 / b) ** (1 / r) <= threshold]
    return max(below, key=lambda option: (1 / option[0]) ** (1 / option[1])) if below else options[0]


class NearDuplicates:
    """Kept rows so far. ``like`` answers for a new row and keeps it when it is like none of them."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._bands, self._width = bands(threshold)
        self._buckets: list[dict[bytes, list[int]]] = [{} for _ in range(self._bands)]
        self._kept: list[np.ndarray] = []

    def like(self, row: Mapping[str, Any]) -> tuple[float, int] | None:
        """(estimated likeness, place from 0 among the kept) of the nearest kept row that reaches the threshold."""
        own = signature(shingles(rowtext.everything(row)))
        raw, step = own.tobytes(), self._width * own.itemsize
        keys = [raw[at * step : (at + 1) * step] for at in range(self._bands)]
        candidates: set[int] = set()
        for bucket, key in zip(self._buckets, keys, strict=True):
            candidates.update(bucket.get(key, ()))
        best, which = 0.0, -1
        for index in candidates:
            likeness = float(np.count_nonzero(self._kept[index] == own)) / PERMUTATIONS
            if likeness > best:
                best, which = likeness, index
        if best >= self._threshold:
            return best, which
        for bucket, key in zip(self._buckets, keys, strict=True):
            bucket.setdefault(key, []).append(len(self._kept))
        self._kept.append(own)
        return None


def near_duplicates(rows: Iterable[tuple[int, Mapping[str, Any]]], threshold: float) -> Iterator[Verdict]:
    """Rows whose estimated Jaccard likeness with an earlier kept row reaches ``threshold``."""
    kept = NearDuplicates(threshold)
    numbers: list[int] = []
    for number, (row_id, row) in enumerate(rows, 1):
        found = kept.like(row)
        if found is None:
            numbers.append(number)
        else:
            yield row_id, "near_duplicate", f"{found[0]:.0%} like accepted row {numbers[found[1]]}"
