"""What changed between two versions: rows that came, went and stayed, compared in every character."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlxplatform.datasets import rowtext

#: Rows shown of each kind.
SHOWN = 20


@dataclass
class Difference:
    common: int = 0
    added: int = 0
    removed: int = 0
    added_rows: list[Mapping[str, Any]] = field(default_factory=list)
    removed_rows: list[Mapping[str, Any]] = field(default_factory=list)


def difference(
    old: Iterable[Mapping[str, Any]], new: Iterable[Mapping[str, Any]], again: Iterable[Mapping[str, Any]]
) -> Difference:
    """Compare as multisets; ``again`` is the old version once more, read for what was removed."""
    left = Counter(rowtext.exactly(row) for row in old)
    found = Difference()
    for row in new:
        digest = rowtext.exactly(row)
        if left[digest] > 0:
            left[digest] -= 1
            found.common += 1
        else:
            found.added += 1
            if len(found.added_rows) < SHOWN:
                found.added_rows.append(row)
    found.removed = sum(left.values())
    for row in again:
        if len(found.removed_rows) >= min(SHOWN, found.removed):
            break
        digest = rowtext.exactly(row)
        if left[digest] > 0:
            left[digest] -= 1
            found.removed_rows.append(row)
    return found
