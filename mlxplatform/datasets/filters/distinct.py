"""Rows that repeat earlier ones: exact duplicates, near duplicates, and instructions too like the pool.

All three go through rows in order and keep the first of each kind, so the verdicts depend on nothing but the
rows before.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mlxplatform.datasets import rowtext

Rows = Iterable[tuple[int, Mapping[str, Any]]]
Verdict = tuple[int, str, str]

_WORD = re.compile(r"\w+", re.UNICODE)
#: Scripts without spaces between words: every character is a token.
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u0e00-\u0e7f]")


def words(text: str) -> list[str]:
    """Comparable tokens: words, and single characters of scripts that write without spaces."""
    plain = text.lower() if text.isascii() else rowtext.normalised(text)
    found = _WORD.findall(plain)
    if plain.isascii() or not _UNSPACED.search(plain):
        return found
    tokens: list[str] = []
    for word in found:
        tokens += list(word) if _UNSPACED.search(word) else [word]
    return tokens


def exact(rows: Rows) -> Iterator[Verdict]:
    seen: dict[bytes, int] = {}
    for number, (row_id, row) in enumerate(rows, 1):
        first = seen.setdefault(rowtext.digest(row), number)
        if first != number:
            yield row_id, "duplicate", f"says the same as accepted row {first}"


class Pool:
    """Instructions accepted so far, and whether a new one is too much like one of them (ROUGE-L F1)."""

    def __init__(self, limit: float, seeds: Iterable[str] = ()) -> None:
        self._limit = limit
        self._texts: list[str] = []
        self._tokens: list[list[str]] = []
        self._counts: list[Counter[str]] = []
        self._holders: dict[str, list[int]] = defaultdict(list)
        for seed in seeds:
            self.add(seed)

    def add(self, text: str) -> None:
        tokens = words(text)
        counts = Counter(tokens)
        index = len(self._texts)
        self._texts.append(text)
        self._tokens.append(tokens)
        self._counts.append(counts)
        for token in counts:
            self._holders[token].append(index)

    def likeness(self, text: str) -> tuple[float, str]:
        """The highest ROUGE-L with a member that reaches the limit, and that member; (0, "") when none does."""
        tokens = words(text)
        counts = Counter(tokens)
        shared: Counter[int] = Counter()
        for token, number in counts.items():
            for index in self._holders.get(token, ()):
                shared[index] += min(number, self._counts[index][token])
        best, which = 0.0, ""
        # Words in common bound the common subsequence from above: most members are ruled out without computing it.
        for index, common in shared.items():
            size = len(tokens) + len(self._tokens[index])
            if 2 * common / size < max(self._limit, best):
                continue
            value = 2 * lcs(tokens, self._tokens[index]) / size
            if value >= self._limit and value > best:
                best, which = value, self._texts[index]
        return best, which

    def verdicts(self, rows: Rows) -> Iterator[Verdict]:
        for row_id, row in rows:
            text = rowtext.asked(row)
            value, other = self.likeness(text)
            if value:
                yield row_id, "like_the_pool", f"ROUGE-L {value:.2f} with: {other[:120]}"
            else:
                self.add(text)


def lcs(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence, a machine word of bits at a time (Hyyrö's recurrence)."""
    if len(a) > len(b):
        a, b = b, a
    positions: dict[str, int] = {}
    for index, token in enumerate(a):
        positions[token] = positions.get(token, 0) | (1 << index)
    full = (1 << len(a)) - 1
    rows = full
    for token in b:
        match = rows & positions.get(token, 0)
        rows = ((rows + match) | (rows - match)) & full
    return len(a) - rows.bit_count()


def rouge_l(a: str, b: str) -> float:
    """ROUGE-L F1 of two texts on words."""
    first, second = words(a), words(b)
    return 2 * lcs(first, second) / (len(first) + len(second)) if first and second else 0.0
