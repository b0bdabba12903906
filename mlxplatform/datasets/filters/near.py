"""Near duplicates by MinHash: the share of word shingles two rows have in common, estimated.

Signatures are computed with numpy for all shingles of a row at once and banded into buckets; only rows that meet in
a bucket are compared, all of them at once. 100,000 rows of forty words take some seconds and 512 bytes each.
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
#: Words whose hash is remembered; past that the memory starts anew.
REMEMBERED = 200_000
_rng = np.random.Generator(np.random.PCG64(20240229))
#: Multiply-and-add modulo 2**32: a permutation of the hashes for every odd factor. 64 bits would estimate no better
#: and take three times as long, since processors multiply eight 32-bit numbers at once.
_FACTORS = _rng.integers(1, 2**32, PERMUTATIONS, dtype=np.uint32) | np.uint32(1)
_OFFSETS = _rng.integers(0, 2**32, PERMUTATIONS, dtype=np.uint32)
#: How the hashes of a shingle's words are joined: by place, so that "a b c" is not "c b a".
_PLACES = tuple(np.uint32(odd) for odd in (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D))


class _WordHashes(dict[str, int]):
    """CRC-32 of each word: the same in every process, unlike Python's own hash."""

    def __missing__(self, word: str) -> int:
        if len(self) >= REMEMBERED:
            self.clear()
        found = self[word] = zlib.crc32(word.encode("utf-8", "surrogatepass"))
        return found


_hash_of = _WordHashes()


def shingles(text: str) -> np.ndarray:
    """32-bit hashes of the text's word shingles, repeats included; a short text is one shingle."""
    tokens = words(text)
    if len(tokens) < SHINGLE:
        return np.array([_hash_of[" ".join(tokens)]], dtype=np.uint32)
    hashes = np.fromiter(map(_hash_of.__getitem__, tokens), dtype=np.uint32, count=len(tokens))
    last = len(tokens) - SHINGLE + 1
    joined = np.zeros(last, dtype=np.uint32)
    for place, factor in enumerate(_PLACES):
        joined += hashes[place : place + last] * factor
    # CRC and sums are linear: spread every bit over the word before the permutations, which are linear as well.
    joined ^= joined >> np.uint32(15)
    joined *= np.uint32(0x2C1B3C6D)
    joined ^= joined >> np.uint32(12)
    joined *= np.uint32(0x297A2D39)
    joined ^= joined >> np.uint32(15)
    return joined


def signature(hashes: np.ndarray) -> np.ndarray:
    """The MinHash signature, 32 bits a permutation."""
    return np.asarray((hashes.astype(np.uint32)[:, None] * _FACTORS[None, :] + _OFFSETS[None, :]).min(axis=0))


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
        self._kept = np.empty((1024, PERMUTATIONS), dtype=np.uint32)
        self._count = 0

    def like(self, row: Mapping[str, Any]) -> tuple[float, int] | None:
        """(estimated likeness, place from 0 among the kept) of the nearest kept row that reaches the threshold."""
        own = signature(shingles(rowtext.everything(row)))
        raw, step = own.tobytes(), self._width * own.itemsize
        keys = [raw[at * step : (at + 1) * step] for at in range(self._bands)]
        candidates: set[int] = set()
        for bucket, key in zip(self._buckets, keys, strict=True):
            if (met := bucket.get(key)) is not None:
                candidates.update(met)
        if candidates:
            places = np.fromiter(sorted(candidates), dtype=np.int64, count=len(candidates))
            alike = np.count_nonzero(self._kept[places] == own, axis=1)
            best = int(alike.argmax())
            likeness = float(alike[best]) / PERMUTATIONS
            if likeness >= self._threshold:
                return likeness, int(places[best])
        self._keep(own, keys)
        return None

    def _keep(self, own: np.ndarray, keys: list[bytes]) -> None:
        if self._count == len(self._kept):
            self._kept = np.concatenate([self._kept, np.empty_like(self._kept)])
        self._kept[self._count] = own
        for bucket, key in zip(self._buckets, keys, strict=True):
            bucket.setdefault(key, []).append(self._count)
        self._count += 1


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
