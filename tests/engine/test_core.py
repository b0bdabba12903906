"""The core: equality of batched and single runs, cancellation, pre-emption, isolation of failures."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlxplatform.inference.contract import Sampling
from tests.engine.conftest import Driver
from workers.engine.choosing import RowChooser
from workers.engine.prefix_cache import PrefixCache

MIB = 1024 * 1024


def prompts(count: int, seed: int = 5) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, 400) for _ in range(rng.randrange(2, 60))] for _ in range(count)]


def test_greedy_tokens_are_the_same_alone_and_in_a_batch(make_driver: Any, alone: Any) -> None:
    given_prompts = prompts(8)
    driver = make_driver()
    for seq, prompt in enumerate(given_prompts):
        driver.start(seq, prompt, max_tokens=20)
    together = driver.run()
    assert [together[seq] for seq in range(8)] == [alone(prompt, max_tokens=20) for prompt in given_prompts]


def test_greedy_tokens_equal_mlx_lms_own_generator(make_driver: Any, tiny: Any) -> None:
    from mlx_lm.generate import BatchGenerator

    given_prompts = prompts(4)
    generator = BatchGenerator(tiny.model)
    uids = generator.insert([list(p) for p in given_prompts], max_tokens=[12] * 4)
    theirs: dict[int, list[int]] = {uid: [] for uid in uids}
    while any(len(tokens) < 12 for tokens in theirs.values()):
        for response in generator.next()[1]:
            theirs[response.uid].append(response.token)
    driver = make_driver()
    for seq, prompt in enumerate(given_prompts):
        driver.start(seq, prompt, max_tokens=12)
    ours = driver.run()
    assert [ours[seq] for seq in range(4)] == [theirs[uid] for uid in uids]


def test_a_stop_token_ends_the_sequence_and_is_not_emitted(make_driver: Any, alone: Any) -> None:
    prompt = prompts(1)[0]
    expected = alone(prompt, max_tokens=20)
    stop = expected[5]
    driver = make_driver()
    driver.start(1, prompt, max_tokens=20, eos=[stop])
    assert driver.run()[1] == expected[: expected.index(stop)]
    assert driver.ended == {1: "stop"}


def test_emitted_tokens_are_continued_not_repeated(make_driver: Any, alone: Any) -> None:
    """Healing: a new child gets prompt and emitted ids and goes on at the next one."""
    prompt = prompts(1)[0]
    whole = alone(prompt, max_tokens=20)
    driver = make_driver()
    driver.start(1, prompt, max_tokens=20, emitted=whole[:7])
    assert driver.run()[1] == whole[7:]


def test_a_seeded_draw_continues_in_a_new_engine(make_driver: Any) -> None:
    prompt, sampling = prompts(1)[0], Sampling(temperature=1.0, seed=11)
    first = make_driver()
    first.start(1, prompt, max_tokens=20, sampling=sampling)
    whole = first.run()[1]
    second = make_driver()
    second.start(1, prompt, max_tokens=20, sampling=sampling, emitted=whole[:7])
    assert second.run()[1] == whole[7:]


def test_a_seeded_request_in_a_busy_batch_repeats_itself(make_driver: Any) -> None:
    runs = []
    for _ in range(2):
        driver = make_driver()
        for seq, prompt in enumerate(prompts(6)):
            driver.start(seq, prompt, max_tokens=24, sampling=Sampling(temperature=1.0, seed=seq))
        runs.append(driver.run())
    assert runs[0] == runs[1]


def test_cancel_frees_the_slot_within_one_step(make_driver: Any) -> None:
    driver = make_driver(slots=1)
    first, second = prompts(2)
    driver.start(1, first, max_tokens=500)
    driver.start(2, second, max_tokens=2)
    while not driver.tokens.get(1):
        driver.step()
    driver.core.cancel(1)
    driver.step()
    assert driver.core.stats()["active"] == 1
    driver.run()
    assert set(driver.ended) == {2}


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 10])
def test_cancel_in_every_phase_leaves_the_others_alone(make_driver: Any, alone: Any, steps: int) -> None:
    first, second = prompts(2, seed=steps)
    driver = make_driver(slots=2)
    driver.start(1, first * 5, max_tokens=40)
    driver.start(2, second, max_tokens=20)
    for _ in range(steps):
        driver.step()
    driver.core.cancel(1)
    driver.core.cancel(1)
    assert driver.run()[2] == alone(second, max_tokens=20)
    assert driver.core.idle


def test_interactive_work_pre_empts_rows_and_their_output_is_unchanged(make_driver: Any, alone: Any) -> None:
    rows, chat = prompts(3), prompts(1, seed=9)[0]
    driver = make_driver(slots=3)
    for seq, prompt in enumerate(rows):
        driver.start(seq, prompt, max_tokens=30, priority="row")
    while len(driver.tokens) < 3:
        driver.step()
    driver.start(9, chat, max_tokens=5)
    driver.step()
    assert driver.core.stats()["active_interactive"] == 1
    driver.run()
    assert driver.core.preemptions >= 1
    assert driver.tokens[9] == alone(chat, max_tokens=5)
    assert [driver.tokens[seq] for seq in range(3)] == [alone(prompt, max_tokens=30) for prompt in rows]


def test_rows_beyond_the_slots_run_alone_and_give_way_to_chat_unchanged(make_driver: Any, alone: Any) -> None:
    rows, chat = prompts(12), prompts(1, seed=9)[0]
    driver = make_driver(slots=4, row_slots=12)
    for seq, prompt in enumerate(rows):
        driver.start(seq, prompt, max_tokens=30, priority="row")
    while driver.core.stats()["active_rows"] < 12:
        driver.step()
    driver.start(99, chat, max_tokens=5)
    while 99 not in driver.ended:
        driver.step()
        assert driver.core.stats()["active"] <= 4
    driver.run()
    assert driver.tokens[99] == alone(chat, max_tokens=5)
    assert [driver.tokens[seq] for seq in range(12)] == [alone(prompt, max_tokens=30) for prompt in rows]


def test_a_chat_beside_rows_is_answered_before_their_next_step(make_driver: Any, alone: Any) -> None:
    rows, chat = prompts(4), prompts(1, seed=9)[0]
    driver = make_driver(slots=8)
    for seq, prompt in enumerate(rows):
        driver.start(seq, prompt, max_tokens=30, priority="row")
    while len(driver.tokens) < 4:
        driver.step()
    driver.start(9, chat, max_tokens=5)
    before = len(driver.steps)
    while 9 not in driver.tokens:
        driver.step()
    assert [token.seq for step in driver.steps[before:] for token in step.tokens] == [9], "nor does it wait for a step of theirs"
    driver.run()
    assert driver.tokens[9] == alone(chat, max_tokens=5)
    assert [driver.tokens[seq] for seq in range(4)] == [alone(prompt, max_tokens=30) for prompt in rows]


def test_rows_begin_in_groups_and_all_are_answered_the_same(make_driver: Any, alone: Any) -> None:
    rows = prompts(40)
    driver = make_driver(slots=4, row_slots=16)
    for seq, prompt in enumerate(rows):
        driver.start(seq, prompt, max_tokens=5 + seq % 7, priority="row")
    driver.run()
    begun = [sum(progress.done == progress.total for progress in step.progress) for step in driver.steps]
    assert max(begun) > 1
    assert sum(1 for count in begun if count) < 20, "40 rows take fewer passes over prompts than rows"
    assert [driver.tokens[seq] for seq in range(40)] == [alone(prompt, max_tokens=5 + seq % 7) for seq, prompt in enumerate(rows)]


def test_rows_wait_while_chat_fills_the_slots(make_driver: Any) -> None:
    driver = make_driver(slots=1)
    row, chat = prompts(2)
    driver.start(1, row, max_tokens=5, priority="row")
    driver.start(2, chat, max_tokens=5)
    driver.run()
    assert list(driver.ended) == [2, 1]


class Failing(RowChooser):
    """Fails as told: in one row's processor, or in the step as a whole."""

    def __init__(self, vocab: int, *, poison: int | None = None, once: bool = False):
        super().__init__(vocab)
        self.poison, self.once, self.calls = poison, once, 0

    def __call__(self, rows: Any, inputs: Any, logits: Any) -> Any:
        self.calls += 1
        if self.once and self.calls == 6:
            raise RuntimeError("the device is on fire")
        if self.poison is not None and any(row.seq == self.poison for row in rows):
            raise RuntimeError("this sequence kills every step")
        return super().__call__(rows, inputs, logits)


def test_after_an_exception_in_the_step_every_sequence_continues(make_driver: Any, alone: Any) -> None:
    given_prompts = prompts(4)
    driver = make_driver(chooser=Failing(512, once=True))
    for seq, prompt in enumerate(given_prompts):
        driver.start(seq, prompt, max_tokens=20)
    together = driver.run()
    assert driver.core.rebuilds == 1
    assert [together[seq] for seq in range(4)] == [alone(prompt, max_tokens=20) for prompt in given_prompts]


def test_the_sequence_that_fails_every_step_ends_alone(make_driver: Any, alone: Any) -> None:
    given_prompts = prompts(4)
    driver = make_driver(chooser=Failing(512, poison=2))
    for seq, prompt in enumerate(given_prompts):
        driver.start(seq, prompt, max_tokens=12)
    driver.run()
    assert set(driver.broken) == {2}
    assert driver.broken[2].code == "engine_failed"
    for seq in (0, 1, 3):
        assert driver.tokens[seq] == alone(given_prompts[seq], max_tokens=12)


def test_suspects_take_turns_and_none_waits_for_another_to_end(make_driver: Any, alone: Any) -> None:
    given_prompts = prompts(4)
    driver = make_driver(chooser=Failing(512, poison=2))
    for seq, prompt in enumerate(given_prompts):
        driver.start(seq, prompt, max_tokens=40)
    while 2 not in driver.broken:
        driver.step()
    assert not driver.ended, "the culprit is found while the innocent are still answering"
    driver.run()
    for seq in (0, 1, 3):
        assert driver.tokens[seq] == alone(given_prompts[seq], max_tokens=40)


def test_a_processor_that_raises_ends_its_own_request_only(make_driver: Any, alone: Any) -> None:
    def explode(tokens: Any, logits: Any) -> Any:
        raise ZeroDivisionError

    class Sabotaged(RowChooser):
        def row(self, order: Any, emitted: list[int]) -> Any:
            row = super().row(order, emitted)
            if order.seq == 1:
                row.processors.append(explode)
            return row

    given_prompts = prompts(3)
    driver = make_driver(chooser=Sabotaged(512))
    for seq, prompt in enumerate(given_prompts):
        driver.start(seq, prompt, max_tokens=12)
    driver.run()
    assert set(driver.broken) == {1}
    assert driver.core.rebuilds == 0
    for seq in (0, 2):
        assert driver.tokens[seq] == alone(given_prompts[seq], max_tokens=12)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, seed=1, top_k=100_000),
        Sampling(temperature=1.0, seed=1, top_k=512),
        Sampling(temperature=1.0, seed=1, top_p=1e-9),
        Sampling(temperature=1.0, seed=1, min_p=1.0, xtc_probability=1.0, xtc_threshold=0.0),
        Sampling(temperature=0.0, repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=1.0, logit_bias={5: 100.0}),
        Sampling(temperature=0.0, repetition_penalty=1.3, repetition_context_size=0),
    ],
)
def test_extreme_sampling_values_give_an_answer(make_driver: Any, sampling: Sampling) -> None:
    driver = make_driver()
    driver.start(1, prompts(1)[0], max_tokens=8, sampling=sampling)
    assert len(driver.run()[1]) == 8


def test_an_empty_prompt_is_refused_and_the_engine_lives(make_driver: Any) -> None:
    driver = make_driver()
    driver.start(1, [], max_tokens=8)
    driver.start(2, prompts(1)[0], max_tokens=3)
    driver.run()
    assert driver.broken[1].status == 400
    assert len(driver.tokens[2]) == 3


def test_logprobs_come_only_where_asked_and_are_true(make_driver: Any) -> None:
    driver = make_driver()
    one, two, three = prompts(3)
    driver.start(1, one, max_tokens=4)
    driver.start(2, two, max_tokens=4, logprobs=0)
    driver.start(3, three, max_tokens=4, logprobs=3)
    driver.run()
    assert all(entry == (None, None) for entry in driver.logprobs[1])
    assert all(value is not None and value <= 0 and not top for value, top in driver.logprobs[2])
    for token, (value, top) in zip(driver.tokens[3], driver.logprobs[3], strict=True):
        assert top[0] == (token, pytest.approx(value))
        assert [v for _, v in top] == sorted((v for _, v in top), reverse=True)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(data=st.data())
def test_any_mix_of_arrivals_cancels_and_pre_emptions_changes_no_output(
    make_driver: Callable[..., Driver], alone: Any, data: st.DataObject
) -> None:
    rng = random.Random(data.draw(st.integers(0, 10**6)))
    prefix = PrefixCache(MIB) if data.draw(st.booleans()) else None
    driver = make_driver(slots=data.draw(st.integers(1, 4)), prefix=prefix)
    shared = [rng.randrange(3, 400) for _ in range(40)]
    waiting = []
    for seq in range(8):
        prompt = shared[: rng.randrange(0, 40)] + [rng.randrange(3, 400) for _ in range(rng.randrange(1, 50))]
        waiting.append((seq, prompt, rng.choice(["interactive", "row"])))
    asked = {seq: prompt for seq, prompt, _ in waiting}
    cancelled = set()
    while waiting or not driver.core.idle:
        for _ in range(rng.randrange(0, 3)):
            if waiting:
                seq, prompt, priority = waiting.pop(0)
                driver.start(seq, prompt, max_tokens=10, priority=priority, boundary=rng.choice([None, len(prompt) // 2]))
        if rng.random() < 0.1 and driver.core._sequences:
            victim = rng.choice(list(driver.core._sequences))
            driver.core.cancel(victim)
            cancelled.add(victim)
        for _ in range(rng.randrange(1, 4)):
            driver.step()
    for seq, prompt in asked.items():
        expected = alone(prompt, max_tokens=10)
        got = driver.tokens.get(seq, [])
        assert got == (expected[: len(got)] if seq in cancelled else expected)


def test_sequences_wait_for_memory_in_their_order(make_driver: Any, alone: Any) -> None:
    driver = make_driver(kv_tokens=100)
    given_prompts = [list(range(5, 45)), list(range(50, 90)), [7, 8, 9]]
    for seq, prompt in enumerate(given_prompts):
        driver.start(seq, prompt, max_tokens=20)
    driver.step()
    assert driver.core.stats()["active"] == 1
    driver.run()
    assert list(driver.ended) == [0, 1, 2]
    assert [driver.tokens[seq] for seq in range(3)] == [alone(prompt, max_tokens=20) for prompt in given_prompts]
