"""A radix tree over token ids: which stored sequence shares the longest beginning with a given one.

Pure data, no mlx. Edges carry runs of tokens, so a stored conversation of 10,000 tokens costs a handful of
nodes, not 10,000.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


class _Node:
    __slots__ = ("children", "edge", "entry", "parent")

    def __init__(self, edge: tuple[int, ...], parent: _Node | None):
        self.edge = edge
        self.parent = parent
        self.children: dict[int, _Node] = {}
        self.entry: Any = None


def uses(namespace: str | None, adapter: str) -> bool:
    """Whether a namespace (adapters joined with +, None for none) is one of this adapter's."""
    return namespace is not None and adapter in namespace.split("+")


def shared_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens two sequences have in common."""
    limit = min(len(left), len(right))
    if left[:limit] == right[:limit]:
        return limit
    low, high = 0, limit  # left[:low] is shared, left[:high] is not
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low


class PrefixTree:
    """Entries by token sequence. At most one entry per sequence."""

    def __init__(self) -> None:
        self._root = _Node((), None)

    def insert(self, tokens: Sequence[int], entry: Any) -> Any:
        """Store an entry; answers the one it replaced, or None."""
        node = self._reach(tuple(tokens))
        replaced, node.entry = node.entry, entry
        return replaced

    def remove(self, tokens: Sequence[int]) -> None:
        """Forget an entry; unknown sequences are ignored."""
        node, depth, within = self._walk(tuple(tokens))
        if within or depth != len(tokens):
            return
        node.entry = None
        while node.parent is not None and node.entry is None and not node.children:
            parent = node.parent
            del parent.children[node.edge[0]]
            node = parent

    def nearest(self, tokens: Sequence[int]) -> tuple[Any, int, Any, int]:
        """``(shorter, its length, longer, shared)``.

        ``shorter`` is the longest entry that is a prefix of ``tokens``; ``longer`` is some entry that shares
        the first ``shared`` tokens and goes on differently or further. Either may be None.
        """
        wanted = tuple(tokens)
        node, depth, within = self._walk(wanted)
        shared = depth + within
        below = node if not within else node.children[wanted[depth]]
        longer = next(self._entries(below), None) if shared else None
        shorter, length = None, 0
        up: _Node | None = node
        while up is not None:
            if up.entry is not None:
                shorter, length = up.entry, depth
                break
            depth -= len(up.edge)
            up = up.parent
        return shorter, length, longer, shared

    def prefixes(self, tokens: Sequence[int]) -> list[Any]:
        """Entries that are strict prefixes of ``tokens``."""
        node, depth, _ = self._walk(tuple(tokens))
        found = []
        up: _Node | None = node
        while up is not None:
            if up.entry is not None and depth < len(tokens):
                found.append(up.entry)
            depth -= len(up.edge)
            up = up.parent
        return found

    def _walk(self, tokens: tuple[int, ...]) -> tuple[_Node, int, int]:
        """The deepest node wholly matched, its depth, and how far the edge below it matches as well."""
        node, depth = self._root, 0
        while depth < len(tokens):
            child = node.children.get(tokens[depth])
            if child is None:
                break
            matched = shared_length(child.edge, tokens[depth : depth + len(child.edge)])
            if matched < len(child.edge):
                return node, depth, matched
            node, depth = child, depth + matched
        return node, depth, 0

    def _reach(self, tokens: tuple[int, ...]) -> _Node:
        node, depth, within = self._walk(tokens)
        if within:
            below = node.children[tokens[depth]]
            middle = _Node(below.edge[:within], node)
            node.children[tokens[depth]] = middle
            below.edge = below.edge[within:]
            below.parent = middle
            middle.children[below.edge[0]] = below
            node, depth = middle, depth + within
        if depth < len(tokens):
            leaf = _Node(tokens[depth:], node)
            node.children[tokens[depth]] = leaf
            node = leaf
        return node

    def _entries(self, node: _Node) -> Iterator[Any]:
        waiting = [node]
        while waiting:
            current = waiting.pop()
            if current.entry is not None:
                yield current.entry
            waiting.extend(current.children.values())
