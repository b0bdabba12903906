"""When the engine waits for the rest of a bunch of chats."""

from __future__ import annotations

from workers.engine.arrivals import GAP, MOST, Arrivals


def arrivals(turn: float) -> Arrivals:
    found = Arrivals()
    for _ in range(50):
        found.turned(turn)
    return found


def test_one_that_comes_alone_is_never_held() -> None:
    line = arrivals(0.003)
    assert line.patience(10.0) == 0
    line.came(10.0)
    assert line.patience(10.0) == 0
    line.came(10.0 + 2 * GAP)
    assert line.patience(10.0 + 2 * GAP) == 0


def test_a_bunch_waits_until_nobody_comes_any_more() -> None:
    line = arrivals(0.003)
    line.came(10.0)
    line.came(10.0 + GAP / 2)
    assert 0 < line.patience(10.0 + GAP / 2) < 1.01 * GAP
    assert line.patience(10.0 + 2 * GAP) == 0


def test_the_first_of_a_bunch_waits_for_a_bounded_time() -> None:
    line, now = arrivals(0.003), 10.0
    while now < 10.0 + MOST:
        line.came(now)
        now += GAP / 2
    assert line.patience(10.0 + MOST) == 0


def test_nobody_is_held_where_turns_are_long() -> None:
    line = arrivals(0.05)
    line.came(10.0)
    line.came(10.001)
    assert line.patience(10.001) == 0 and not line.quick
