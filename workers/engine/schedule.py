"""Who runs: pure decisions over counts, without mlx.

Interactive sequences come first, first in first out. Rows use the slots interactive work leaves free; when
an interactive sequence finds no free slot, the row that started last gives up its place (it keeps its cache
and loses nothing but time). While an interactive prompt is being prefilled, rows do not prefill beside it.
Rows among themselves may be more (``row_slots``): nobody watches how fast each of them comes, and together they come
faster. They make way down to ``slots`` as soon as somebody does watch.
``row_share`` slots (default 0) are kept from pre-emption, so that rows never stop entirely when configured.
"""

from __future__ import annotations

from collections.abc import Sequence as Listing
from dataclasses import dataclass

#: Rows that begin together share one pass over their prompts, so a free slot waits for others of its kind: for so many
#: rows, or for so many steps, which long answers do not notice.
GATHER_ROWS, GATHER_STEPS = 8, 4
#: Turns in a row in which those who decode are passed over for a newcomer, so that its first word waits for its own
#: prompt and not for their steps. Chats lose two steps at most; rows as many as a chat's prompt takes.
PASSED_OVER = 2
#: Fewest prompt tokens of one sequence per step: below it the per-step cost dwarfs the work.
CHUNK_FLOOR = 16
#: Most prompt tokens of one sequence per step.
CHUNK_CAP = 512
#: Longest prefill turn while nobody watches tokens come, as a multiple of the target: what a chat that arrives, a
#: cancel and the end of the lease wait for at most.
IDLE_STRETCH = 4.0


@dataclass(frozen=True)
class Standing:
    """One sequence in the generator, as far as scheduling is concerned, in order of insertion."""

    seq: int
    is_row: bool
    decoding: bool


@dataclass(frozen=True)
class Turn:
    """``admit`` counts from each waiting line's front; ``preempt`` names running rows, the newest first."""

    admit_interactive: int
    admit_rows: int
    preempt: tuple[int, ...] = ()


def plan(running: Listing[Standing], interactive: int, rows: int, slots: int, row_share: int = 0, row_slots: int = 0) -> Turn:
    """Decide one turn. ``interactive`` and ``rows`` count what waits."""
    chat = interactive > 0 or any(not standing.is_row for standing in running)
    free = (slots if chat else max(slots, row_slots)) - len(running)
    running_rows = [standing for standing in running if standing.is_row]
    preempt: list[int] = []
    if interactive:
        # A row in prefill would share the chunk with the newcomer; it goes back to wait with what it has.
        preempt += [standing.seq for standing in reversed(running_rows) if not standing.decoding]
        missing = min(interactive, slots) - (free + len(preempt))
        decoding_rows = [standing.seq for standing in reversed(running_rows) if standing.decoding]
        protected = max(0, row_share)
        spare = max(0, len(decoding_rows) - protected)
        if missing > 0:
            preempt += decoding_rows[: min(missing, spare)]
    free += len(preempt)
    admit = min(interactive, max(0, free))
    free = max(0, free - admit)
    prefilling = admit > 0 or any(not standing.is_row and not standing.decoding for standing in running)
    return Turn(admit, 0 if prefilling else min(rows, free), tuple(preempt))


def gathers(running: Listing[Standing], admit: int, waiting: int, steps: int) -> bool:
    """Whether rows that could begin wait for company: while others decode, for ``steps`` steps up to now."""
    if steps >= GATHER_STEPS or admit >= min(GATHER_ROWS, waiting):
        return False
    return all(standing.is_row and standing.decoding for standing in running) and len(running) >= GATHER_ROWS


def newcomers_first(running: Listing[Standing], longest_rest: int, chunk: int, turns: int, row_share: int = 0) -> bool:
    """Whether this turn feeds prompts only. ``longest_rest`` is what is left of the longest, ``turns`` how many went by so.

    Rows among themselves always do: all of them are through at the same time either way, and a chat that arrives waits
    for a piece of a prompt or for a step, never for both.
    """
    decoding = [standing for standing in running if standing.decoding]
    prefilling = [standing for standing in running if not standing.decoding]
    if not decoding or not prefilling:
        return False
    if all(standing.is_row for standing in running):
        return True
    if any(standing.is_row for standing in prefilling):
        return False
    if all(standing.is_row for standing in decoding):
        return row_share == 0 or turns < PASSED_OVER
    return longest_rest <= chunk and turns < PASSED_OVER


def chunk_tokens(
    running: Listing[Standing],
    tokens_per_second: float,
    target_seconds: float,
) -> int:
    """Prompt tokens per sequence and step so that one prefill turn lasts about ``target_seconds``.

    Only a chat that waits for tokens makes the target bind. While none does a longer turn is allowed, since only
    arrivals could notice it.
    """
    prefilling = [standing for standing in running if not standing.decoding]
    if not prefilling:
        return CHUNK_CAP
    stretch = 1.0 if any(standing.decoding and not standing.is_row for standing in running) else IDLE_STRETCH
    tokens = int(tokens_per_second * target_seconds * stretch / len(prefilling))
    return max(CHUNK_FLOOR, min(CHUNK_CAP, tokens))
