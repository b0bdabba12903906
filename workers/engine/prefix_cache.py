"""Prompt caches kept for reuse: in memory by bytes and count, and on SSD across restarts.

A cache is found by the tokens it holds, within one namespace per adapter. The caller gets a view it may trim:
nothing is copied, because the generator copies a cache when it merges it into the batch. One token is always
held back, since a sequence with nothing left to feed cannot be started.

The tier on SSD (:mod:`workers.engine.prefix_disk`) is written while the engine is idle and read when it knows
more than memory does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

from workers.engine.batch import can_trim_prompt_cache, trim_prompt_cache
from workers.engine.prefix_tree import PrefixTree, uses

#: Entries at most: each is a few live buffers per layer, and Metal counts buffers as well as bytes.
MAX_ENTRIES = 256
#: Shortest sequence worth keeping, tokens.
SHORTEST = 16
#: Tokens that a longer match on SSD must add before it is read.
WORTH_READING = 64


@dataclass(eq=False)
class Kept:
    """One stored cache."""

    adapter: str | None
    tokens: tuple[int, ...]
    cache: list[Any]
    bytes: int
    saved: bool = False


class Disk(Protocol):
    """The tier below memory."""

    def longest(self, adapter: str | None, tokens: Sequence[int]) -> int: ...
    def load(self, adapter: str | None, tokens: Sequence[int]) -> tuple[tuple[int, ...], list[Any]] | None: ...
    def save(self, adapter: str | None, tokens: Sequence[int], cache: list[Any]) -> None: ...
    def clear(self) -> None: ...
    def forget_adapter(self, name: str) -> None: ...


def view(cache: list[Any]) -> list[Any]:
    """The same arrays in layer objects of our own, so that trimming does not reach the stored ones."""
    return [_layer_view(layer) for layer in cache]


def _layer_view(layer: Any) -> Any:
    own = copy(layer)
    inner = getattr(layer, "caches", None)
    if inner is not None:  # a list of caches in one layer
        own.caches = type(inner)(_layer_view(each) for each in inner)
    return own


class PrefixCache:
    """Used by the engine's main thread only."""

    def __init__(self, max_bytes: int, *, max_entries: int = MAX_ENTRIES, disk: Disk | None = None):
        self._max_bytes, self._max_entries, self._disk = max_bytes, max_entries, disk
        self._trees: dict[str | None, PrefixTree] = {}
        self._entries: OrderedDict[tuple[str | None, tuple[int, ...]], Kept] = OrderedDict()
        self.bytes = 0
        self.hits = self.misses = self.evictions = self.hit_tokens = self.disk_hits = 0

    def __len__(self) -> int:
        return len(self._entries)

    def fetch(self, adapter: str | None, tokens: Sequence[int]) -> tuple[list[Any] | None, int]:
        """A cache for the longest known beginning of ``tokens`` and how many tokens it covers; (None, 0) if none."""
        usable = tokens[:-1]
        kept, covered = self._best(adapter, usable)
        if self._disk is not None and self._disk.longest(adapter, usable) >= covered + WORTH_READING:
            loaded = self._disk.load(adapter, usable)
            if loaded is not None:
                self.disk_hits += 1
                self._store(Kept(adapter, loaded[0], loaded[1], _nbytes(loaded[1]), saved=True))
                kept, covered = self._best(adapter, usable)
        if kept is None or covered < SHORTEST:
            self.misses += 1
            return None, 0
        self._entries.move_to_end((adapter, kept.tokens), last=True)
        cache = view(kept.cache)
        excess = len(kept.tokens) - covered
        if excess:
            trim_prompt_cache(cache, excess)
        self.hits += 1
        self.hit_tokens += covered
        return cache, covered

    def covers(self, adapter: str | None, tokens: Sequence[int]) -> int:
        """How many leading tokens are known, without counting as a use."""
        return self._best(adapter, tokens)[1]

    def keep(self, adapter: str | None, tokens: Sequence[int], cache: list[Any]) -> None:
        """Store a cache that holds exactly ``tokens``."""
        if len(tokens) < SHORTEST or not self._max_bytes:
            return
        key = (adapter, tuple(tokens))
        if key in self._entries:
            self._entries.move_to_end(key)
            return
        trimmable = can_trim_prompt_cache(cache)
        if trimmable and self.covers(adapter, tokens) == len(tokens):
            return  # a longer entry can be cut to this one
        size = _nbytes(cache)
        if size > self._max_bytes:
            return
        # Unevaluated, an entry would hold on to the whole batch it was cut from.
        mx.eval([layer.state for layer in cache])
        if trimmable:
            for shorter in self._tree(adapter).prefixes(tokens):
                self._forget(shorter)
        self._store(Kept(adapter, key[1], cache, size))

    def flush(self) -> None:
        """Forget everything, on SSD as well."""
        self._entries.clear()
        self._trees.clear()
        self.bytes = 0
        if self._disk is not None:
            self._disk.clear()

    def forget_adapter(self, name: str) -> None:
        """Drop what was computed with an adapter, alone or joined with others: its files may come back changed."""
        for kept in [kept for kept in self._entries.values() if uses(kept.adapter, name)]:
            self._forget(kept)
        if self._disk is not None:
            self._disk.forget_adapter(name)

    def shrink(self) -> None:
        """Drop the older half of what is in memory."""
        self._trim(self.bytes // 2)

    def resize(self, max_bytes: int) -> None:
        """Keep at most so much from now on."""
        self._max_bytes = max_bytes
        self._trim(max_bytes)

    def save_one(self) -> bool:
        """Write one entry to SSD; False when there is nothing to write. For idle moments."""
        if self._disk is None:
            return False
        for kept in reversed(self._entries.values()):
            if not kept.saved:
                kept.saved = True
                self._disk.save(kept.adapter, kept.tokens, kept.cache)
                return True
        return False

    def stats(self) -> dict[str, float]:
        return {
            "prefix_entries": len(self._entries),
            "prefix_bytes": self.bytes,
            "prefix_hits": self.hits,
            "prefix_misses": self.misses,
            "prefix_hit_tokens": self.hit_tokens,
            "prefix_disk_hits": self.disk_hits,
            "prefix_evictions": self.evictions,
        }

    def _tree(self, adapter: str | None) -> PrefixTree:
        return self._trees.setdefault(adapter, PrefixTree())

    def _best(self, adapter: str | None, tokens: Sequence[int]) -> tuple[Kept | None, int]:
        shorter, length, longer, shared = self._tree(adapter).nearest(tokens)
        if longer is not None and shared > length and can_trim_prompt_cache(longer.cache):
            return longer, shared
        return shorter, length

    def _store(self, kept: Kept) -> None:
        self._tree(kept.adapter).insert(kept.tokens, kept)
        self._entries[(kept.adapter, kept.tokens)] = kept
        self.bytes += kept.bytes
        self._trim(self._max_bytes)

    def _trim(self, max_bytes: int) -> None:
        while self.bytes > max_bytes or len(self._entries) > self._max_entries:
            oldest = next(iter(self._entries.values()))
            if self._disk is not None and not oldest.saved:
                self._disk.save(oldest.adapter, oldest.tokens, oldest.cache)
            self._forget(oldest)
            self.evictions += 1

    def _forget(self, kept: Kept) -> None:
        if self._entries.pop((kept.adapter, kept.tokens), None) is not None:
            self.bytes -= kept.bytes
            self._tree(kept.adapter).remove(kept.tokens)


def _nbytes(cache: list[Any]) -> int:
    return sum(int(layer.nbytes) for layer in cache)
