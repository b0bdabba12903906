"""Scheduling decisions as functions of data."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workers.engine.schedule import (
    CHUNK_CAP,
    CHUNK_FLOOR,
    GATHER_ROWS,
    GATHER_STEPS,
    Standing,
    chunk_tokens,
    gathers,
    newcomers_first,
    plan,
)

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


@given(st.lists(STANDING, max_size=32, unique_by=lambda standing: standing.seq), st.integers(0, 20), st.integers(0, 40))
def test_rows_alone_may_be_more_and_make_way_as_soon_as_there_is_chat(
    running: list[Standing], interactive: int, rows: int
) -> None:
    turn = plan(running, interactive, rows, 16, row_slots=32)
    rest = [standing for standing in running if standing.seq not in turn.preempt]
    count = len(rest) + turn.admit_interactive + turn.admit_rows
    assert count <= 32
    if interactive:
        chats = sum(not standing.is_row for standing in rest)
        assert count <= max(16, chats)
    if turn.admit_rows and any(not standing.is_row for standing in running):
        assert count <= 16


def test_more_rows_than_slots_run_while_nobody_watches() -> None:
    running = [Standing(seq, True, True) for seq in range(16)]
    assert plan(running, 0, 40, 16, row_slots=32).admit_rows == 16
    assert plan(running, 0, 40, 16).admit_rows == 0
    full = [Standing(seq, True, True) for seq in range(32)]
    turn = plan(full, 1, 40, 16, row_slots=32)
    assert (turn.admit_interactive, turn.admit_rows) == (1, 0)
    assert turn.preempt == tuple(range(31, 14, -1))


def test_a_free_slot_waits_a_few_steps_for_others_while_rows_decode() -> None:
    running = [Standing(seq, True, True) for seq in range(30)]
    assert gathers(running, 2, 40, 0)
    assert not gathers(running, 2, 40, GATHER_STEPS), "not for long"
    assert not gathers(running, GATHER_ROWS, 40, 0), "there are enough"
    assert not gathers(running, 2, 2, 0), "no others will come"
    assert not gathers([], 2, 40, 0), "nothing runs meanwhile"
    assert not gathers([*running, Standing(99, True, False)], 2, 40, 0), "a pass over prompts is under way anyway"


def test_a_row_in_prefill_makes_way_even_when_slots_are_free() -> None:
    running = [Standing(1, True, True), Standing(2, True, False)]
    turn = plan(running, 1, 3, 16)
    assert turn.preempt == (2,)
    assert (turn.admit_interactive, turn.admit_rows) == (1, 0)


def test_a_newcomers_prompt_goes_before_the_steps_of_rows_and_for_a_moment_before_those_of_chats() -> None:
    chat, prompt = Standing(1, False, True), Standing(2, False, False)
    row, row_prompt = Standing(3, True, True), Standing(4, True, False)
    assert newcomers_first([row, prompt], 2000, 100, 50)
    assert not newcomers_first([row, prompt], 2000, 100, 50, row_share=1), "rows that have a share do not stand still"
    assert newcomers_first([chat, row, prompt], 60, 100, 1)
    assert not newcomers_first([chat, prompt], 60, 100, 2), "not for long"
    assert not newcomers_first([chat, prompt], 2000, 100, 0), "not for a prompt of many turns"
    assert not newcomers_first([chat, row_prompt], 60, 100, 0), "not for rows"
    assert newcomers_first([row, row_prompt], 2000, 100, 50), "except among rows: a chat waits for a chunk or a step, not both"
    assert not newcomers_first([prompt], 60, 100, 0) and not newcomers_first([chat, row], 1, 100, 0)


def test_prefill_is_short_only_while_somebody_waits_for_tokens() -> None:
    chat, prompt = Standing(1, False, True), Standing(2, False, False)
    row, row_prompt = Standing(3, True, True), Standing(4, True, False)
    assert chunk_tokens([chat, prompt], 1000, 0.1) == 100
    assert chunk_tokens([chat, prompt, row_prompt], 1000, 0.1) == 50
    assert chunk_tokens([prompt], 1000, 0.1) == 400
    assert chunk_tokens([row, row_prompt], 1000, 0.1) == 400
    assert chunk_tokens([row, row_prompt], 100, 0.1) == 40, "a chat that arrives waits for four tenths of a second"
    assert chunk_tokens([chat, prompt], 1, 0.1) == CHUNK_FLOOR
    assert chunk_tokens([chat, prompt], 10**9, 0.1) == CHUNK_CAP
