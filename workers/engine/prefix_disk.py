"""The prefix cache's tier on SSD: one safetensors file per kept sequence, in a folder per identity.

The identity covers everything that makes a cache wrong elsewhere: model revision, dtype, template. The
adapter is part of each entry. Files are written under a temporary name and renamed, so a kill leaves no half
entry; an unreadable file is deleted. The oldest go when the folder grows past its limit.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog

from workers.engine.loading import import_light_mlx_lm
from workers.engine.prefix_tree import PrefixTree, uses

import_light_mlx_lm()

from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache  # noqa: E402

log = structlog.get_logger(__name__)

#: Shortest sequence worth a file, tokens.
SHORTEST = 256


class DiskTier:
    """Entries of one identity. ``folder`` is private to this engine's user."""

    def __init__(self, folder: Path, identity: str, max_bytes: int):
        self._folder = folder / hashlib.sha256(identity.encode()).hexdigest()[:24]
        self._max_bytes = max_bytes
        self._trees: dict[str | None, PrefixTree] = {}
        self._files: dict[Path, tuple[str | None, tuple[int, ...], int]] = {}
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._scan()

    def longest(self, adapter: str | None, tokens: Sequence[int]) -> int:
        """How many leading tokens the best stored sequence shares."""
        return self._best(adapter, tokens)[1]

    def load(self, adapter: str | None, tokens: Sequence[int]) -> tuple[tuple[int, ...], list[Any]] | None:
        """The stored sequence that shares the longest beginning with ``tokens``, with its cache."""
        path, _ = self._best(adapter, tokens)
        if path is None:
            return None
        known = self._files[path][1]
        try:
            cache = load_prompt_cache(str(path))
            os.utime(path)
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            log.warning("prefix.unreadable", file=path.name, reason=str(error))
            self._drop(path)
            return None
        return known, cache

    def save(self, adapter: str | None, tokens: Sequence[int], cache: list[Any]) -> None:
        if len(tokens) < SHORTEST:
            return
        body = json.dumps([adapter, list(tokens)], separators=(",", ":"))
        path = self._folder / f"{hashlib.sha256(body.encode()).hexdigest()[:32]}.safetensors"
        if path in self._files:
            return
        # mlx appends the suffix when it is missing, so the temporary name keeps it.
        temporary = path.with_name(f".{path.stem}.{os.getpid()}.safetensors")
        try:
            save_prompt_cache(str(temporary), cache, {"entry": body})
            temporary.replace(path)
            (self._folder / f"{path.stem}.json").write_text(body)
        except (OSError, RuntimeError) as error:
            log.warning("prefix.not_saved", reason=str(error))
            temporary.unlink(missing_ok=True)
            return
        self._add(path, adapter, tuple(tokens), path.stat().st_size)
        self._shrink()

    def clear(self) -> None:
        for path in list(self._files):
            self._drop(path)

    def forget_adapter(self, name: str) -> None:
        for path in [path for path, (adapter, _, _) in self._files.items() if uses(adapter, name)]:
            self._drop(path)

    def _best(self, adapter: str | None, tokens: Sequence[int]) -> tuple[Path | None, int]:
        shorter, length, longer, shared = self._tree(adapter).nearest(tokens)
        return (longer, shared) if longer is not None and shared > length else (shorter, length)

    def _tree(self, adapter: str | None) -> PrefixTree:
        return self._trees.setdefault(adapter, PrefixTree())

    def _scan(self) -> None:
        for index in self._folder.glob("*.json"):
            path = index.with_suffix(".safetensors")
            try:
                adapter, tokens = json.loads(index.read_text())
                self._add(path, adapter, tuple(tokens), path.stat().st_size)
            except (OSError, ValueError, TypeError):
                index.unlink(missing_ok=True)
                path.unlink(missing_ok=True)
        for leftover in self._folder.glob(".*.safetensors"):
            leftover.unlink(missing_ok=True)

    def _add(self, path: Path, adapter: str | None, tokens: tuple[int, ...], size: int) -> None:
        self._files[path] = (adapter, tokens, size)
        self._tree(adapter).insert(tokens, path)

    def _drop(self, path: Path) -> None:
        adapter, tokens, _ = self._files.pop(path)
        self._tree(adapter).remove(tokens)
        path.unlink(missing_ok=True)
        path.with_suffix(".json").unlink(missing_ok=True)

    def _shrink(self) -> None:
        total = sum(size for _, _, size in self._files.values())
        by_age = sorted(self._files, key=lambda path: path.stat().st_mtime if path.exists() else 0.0)
        for path in by_age:
            if total <= self._max_bytes:
                return
            total -= self._files[path][2]
            self._drop(path)
