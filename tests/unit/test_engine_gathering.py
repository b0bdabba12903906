"""What an engine says, held back and said together: complete, in order, and never at the expense of who reads along."""

from __future__ import annotations

import pytest

from mlxplatform.inference.contract import Sampling
from workers.engine.gathering import FIRST_TOKENS, HOLD, Gathering
from workers.engine.protocol import Broken, Ended, Progress, Run, Start, Step, Token

ROW, OTHER_ROW, CHAT = 1, 2, 3
#: Something was said just before.
NOW = 100.0


def order(seq: int, priority: str = "row", **fields: object) -> Start:
    return Start(seq, [5, 6], [], 9, priority, [], Sampling(), **fields)  # type: ignore[arg-type]


@pytest.fixture
def held() -> Gathering:
    found = Gathering()
    for seq in (ROW, OTHER_ROW):
        found.begin(order(seq))
    found.begin(order(CHAT, "interactive"))
    found.add(Step([Token(ROW, 10)]), NOW)
    return found


def test_tokens_of_rows_wait_and_come_together_in_their_order(held: Gathering) -> None:
    assert held.add(Step([Token(ROW, 11), Token(OTHER_ROW, 21)]), NOW) is None
    assert held.add(Step([Token(ROW, 12)]), NOW + HOLD / 2) is None
    said = held.add(Step([Token(ROW, 13)], ended=[Ended(OTHER_ROW, "stop")]), NOW + HOLD)
    assert said == Step([], ended=[Ended(OTHER_ROW, "stop")], runs=[Run(ROW, [11, 12, 13]), Run(OTHER_ROW, [21])])
    assert held.all(NOW + HOLD) is None


def test_a_slow_model_is_never_held_back(held: Gathering) -> None:
    for turn in range(1, 9):
        assert held.add(Step([Token(CHAT, turn), Token(ROW, turn)]), NOW + turn * (HOLD + 0.001)) is not None


def test_the_first_words_of_a_chat_wait_for_nothing_and_take_along_what_there_is(held: Gathering) -> None:
    held.add(Step([Token(ROW, 11)]), NOW)
    assert held.add(Step([Token(ROW, 12), Token(CHAT, 31)]), NOW) == Step([], runs=[Run(ROW, [11, 12]), Run(CHAT, [31])])
    for _ in range(FIRST_TOKENS - 1):
        assert held.add(Step([Token(CHAT, 32)]), NOW) is not None
    assert held.add(Step([Token(CHAT, 33)]), NOW) is None, "its middle comes a screen's picture at a time"


def test_a_chats_prefill_its_end_and_its_failure_are_said_at_once(held: Gathering) -> None:
    for news in (
        Step([], progress=[Progress(CHAT, 2, 2, 0)]),
        Step([], ended=[Ended(CHAT, "length")]),
        Step([], broken=[Broken(CHAT, "engine_failed", "", 500)]),
    ):
        assert held.add(news, NOW) == news


def test_of_a_rows_prefill_only_the_last_word_is_said(held: Gathering) -> None:
    assert held.add(Step([], progress=[Progress(ROW, 2, 9, 0)]), NOW) is None
    assert held.add(Step([], progress=[Progress(ROW, 9, 9, 0)]), NOW) is None
    assert held.all(NOW) == Step([], progress=[Progress(ROW, 9, 9, 0)])


def test_tokens_with_log_probabilities_keep_them(held: Gathering) -> None:
    held.begin(order(9, logprobs=2))
    tokens = [Token(9, 11, -0.5, [(11, -0.5)]), Token(9, 12, -0.7, [(12, -0.7)])]
    assert held.add(Step(tokens[:1]), NOW) is None
    assert held.add(Step(tokens[1:]), NOW + HOLD) == Step(tokens)


def test_nothing_is_said_of_who_was_cancelled(held: Gathering) -> None:
    held.add(Step([Token(ROW, 11), Token(OTHER_ROW, 21)], progress=[Progress(ROW, 2, 2, 0)]), NOW)
    held.forget(ROW)
    assert held.all(NOW) == Step([], runs=[Run(OTHER_ROW, [21])])
