"""What went wrong in other MLX servers, each as a test: mlx_lm.server's known defects, tried on this engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mlxplatform.inference.contract import Finished, Refusal, Sampling, Text, Tool, ToolCall
from tests.engine.conftest import ENDLESS, Host
from tests.engine.test_core import MIB, prompts
from workers.engine.prefix_cache import PrefixCache

MakeHost = Callable[..., Host]


def test_a_prompt_that_equals_an_earlier_prompt_and_its_answer(make_driver: Any, alone: Any) -> None:
    prompt = prompts(1, seed=3)[0]
    driver = make_driver(prefix=PrefixCache(MIB))
    driver.start(1, prompt, max_tokens=20)
    said = [*prompt, *driver.run()[1]]
    driver.start(2, said, max_tokens=8)
    assert driver.run()[2] == alone(said, max_tokens=8)
    assert driver.cached[2] == len(said) - 1, "one token is held back, the rest is not computed again"


def test_waiting_requests_are_served_in_the_order_they_came(make_driver: Any) -> None:
    driver = make_driver(slots=1)
    for seq, prompt in enumerate(prompts(5)):
        driver.start(seq, prompt, max_tokens=4)
    driver.run()
    assert list(driver.ended) == [0, 1, 2, 3, 4]


def test_a_seeded_request_waits_for_nobody(make_driver: Any) -> None:
    driver = make_driver()
    for seq, prompt in enumerate(prompts(4)):
        driver.start(seq, prompt, max_tokens=200)
    for _ in range(6):
        driver.step()
    driver.start(9, prompts(1, seed=8)[0], max_tokens=5, sampling=Sampling(temperature=1.0, seed=4))
    for _ in range(12):
        driver.step()
    assert driver.ended == {9: "length"}
    assert driver.core.stats()["active"] == 4


def test_an_unknown_model_leaves_the_loaded_one_as_it_is(make_host: MakeHost) -> None:
    host = make_host()
    running, answer = host.start("What is 2 plus 3?", max_tokens=400, sampling=ENDLESS)
    answer.wait(lambda a: bool(a.text))
    pid = host.engine().pid
    with pytest.raises(Refusal) as refused:
        host.start(model="no-such-model")
    assert refused.value.status == 404
    assert (host.engine().pid, host.engine().state) == (pid, "ready")
    assert running.done.wait(60)
    assert isinstance(answer.last, Finished)


def test_a_request_that_nobody_reads_any_more_stops_generating(make_host: MakeHost) -> None:
    host = make_host()
    running, answer = host.start(max_tokens=1500, sampling=ENDLESS)
    answer.wait(lambda a: bool(a.text))
    running.cancel("client left")
    assert running.done.wait(10)
    said = host.engine().stats.get("emitted_tokens", 0)
    host.ask(max_tokens=2)
    assert host.engine().busy is False
    assert said < 1500


def test_a_tool_call_that_cannot_be_read_is_text_and_ends_as_such(shared_host: Host) -> None:
    """The model is made to write markup that is no call: it must not end as tool_calls, and nothing of it is lost."""
    from mlxplatform.inference.contract import Constraint

    broken = '<tool_call>{"name": "now", "arguments": </tool_call>'
    answer = shared_host.ask(
        max_tokens=200,
        tools=[Tool("now")],
        tool_choice="auto",
        constraint=Constraint("choice", [broken]),
        sampling=Sampling(temperature=0),
    )
    assert isinstance(answer.last, Finished)
    assert answer.last.reason == "stop"
    assert not any(isinstance(event, ToolCall) for event in answer.events)
    assert "".join(event.text for event in answer.events if isinstance(event, Text)) == broken
