"""Where on its way through a prompt a sequence leaves a copy of its cache. A pure decision over tokens, without mlx."""

from __future__ import annotations

from workers.engine.prefix_tree import shared_length
from workers.engine.sequence import Sequence

#: Shared prompt tokens, not yet cached, for which the next in line waits rather than computing them again.
WORTH_WAITING = 48


def choose(sequence: Sequence, following: Sequence | None, covered: int, *, cut_later: bool) -> tuple[int, int]:
    """``(boundary, leads)``: what the next in line shares and waits for, else what the next turn will begin with.

    ``covered`` tokens are cached already; 0 stands for no copy. ``cut_later``: what is kept at the end can be cut to any
    beginning of it, so that a copy on the way would cost a turn for nothing.
    """
    if following is not None and following.order.adapter == sequence.order.adapter:
        shared = min(shared_length(sequence.tokens, following.tokens), len(sequence.tokens) - 1)
        if shared >= covered + WORTH_WAITING:
            return shared, shared
    wanted = sequence.order.boundary or 0
    return (wanted, 0) if not cut_later and covered < wanted < len(sequence.tokens) else (0, 0)
