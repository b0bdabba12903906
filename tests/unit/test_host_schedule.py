"""Scheduling decisions as functions of data."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workers.engine.schedule import CHUNK_CAP, CHUNK_FLOOR, Standing, chunk_tokens, plan

STANDING = st.builds(Standing, st.integers(0, 10**6), st.booleans(), st.booleans())
STANDINGS = st.lists(STANDING, max_size=16, unique_by=lambda standing: standing.seq)


@given(STANDINGS, st.integers(0, 20), st.integers(0, 20), st.integers(0, 4))
def test_a_turn_never_overfills_and_never_touches_chat(running: list[Standing], interactive: int, rows: int, share: int) -> None:
    slots = 16
    turn = plan(running, interactive, rows, slots, share)
    by_seq = {standing.seq: standing for standing in running}
    assert all(by_seq[seq].is_row for seq in turn.preempt)
    assert len(set(turn.preempt)) == len(turn.preempt)
    assert turn.admit_interactive <= interactive
    assert turn.admit_rows <= rows
    assert len(running) - len(turn.preempt) + turn.admit_interactive + turn.admit_rows <= slots


@given(STANDINGS, st.integers(0, 20), st.integers(0, 20))
def test_rows_get_a_slot_only_when_no_chat_wants_it(running: list[Standing], interactive: int, rows: int) -> None:
    turn = plan(running, interactive, rows, 16)
    if turn.admit_rows:
        assert turn.admit_interactive == interactive == 0
    if not interactive:
        assert turn.preempt == ()


def test_the_row_that_started_last_gives_way_first() -> None:
    running = [Standing(seq, True, True) for seq in range(4)]
    assert plan(running, 2, 0, 4).preempt == (3, 2)


def test_the_configured_share_of_rows_is_not_pre_empted() -> None:
    running = [Standing(seq, True, True) for seq in range(4)]
    assert plan(running, 4, 0, 4, row_share=1).preempt == (3, 2, 1)


def test_a_row_in_prefill_makes_way_even_when_slots_are_free() -> None:
    running = [Standing(1, True, True), Standing(2, True, False)]
    turn = plan(running, 1, 3, 16)
    assert turn.preempt == (2,)
    assert (turn.admit_interactive, turn.admit_rows) == (1, 0)


def test_prefill_is_short_only_while_somebody_waits_for_tokens() -> None:
    chat, prompt = Standing(1, False, True), Standing(2, False, False)
    row, row_prompt = Standing(3, True, True), Standing(4, True, False)
    assert chunk_tokens([chat, prompt], 1000, 0.1) == 100
    assert chunk_tokens([chat, prompt, row_prompt], 1000, 0.1) == 50
    assert chunk_tokens([prompt], 1000, 0.1) == 400
    assert chunk_tokens([row, row_prompt], 1000, 0.1) == CHUNK_CAP
    assert chunk_tokens([row, row_prompt], 50, 0.1) == 100, "two seconds are the most a chat that arrives has to wait"
    assert chunk_tokens([chat, prompt], 1, 0.1) == CHUNK_FLOOR
    assert chunk_tokens([chat, prompt], 10**9, 0.1) == CHUNK_CAP
