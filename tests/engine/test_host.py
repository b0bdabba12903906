"""The host runtime on real engine children: answers, refusals, cancellation, healing, residency."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxplatform.inference.contract import (
    Admitted,
    Constraint,
    Failed,
    Finished,
    Message,
    Refusal,
    Sampling,
    Text,
    Waiting,
)
from tests.engine.conftest import EMBEDDER, ENDLESS, Host
from workers.host import healing

MakeHost = Callable[..., Host]


def test_an_answer_is_admitted_first_and_finished_last(shared_host: Host) -> None:
    answer = shared_host.ask("What is the capital of Japan?", max_tokens=40)
    assert isinstance(answer.events[0], Admitted)
    assert answer.events[0].model == "tiny"
    assert answer.text == "The capital of Japan is Tokyo."
    assert isinstance(answer.last, Finished)
    assert answer.last.reason == "stop"
    assert sum(isinstance(event, Finished) for event in answer.events) == 1


def test_a_stop_string_ends_the_answer_and_is_named(shared_host: Host) -> None:
    answer = shared_host.ask("What is the capital of Japan?", max_tokens=40, stop=["Japan"])
    assert answer.text == "The capital of "
    assert isinstance(answer.last, Finished)
    assert (answer.last.reason, answer.last.stop_sequence) == ("stop", "Japan")


def test_length_ends_with_length(shared_host: Host) -> None:
    last = shared_host.ask(max_tokens=1).last
    assert isinstance(last, Finished)
    assert (last.reason, last.usage.completion) == ("length", 1)


def test_the_next_turn_reports_its_cached_tokens(shared_host: Host) -> None:
    turns = [Message("user", "What is the capital of Peru? " * 4)]
    answer = shared_host.ask(messages=turns, max_tokens=20)
    turns += [Message("assistant", answer.text), Message("user", "And of Cuba?")]
    last = shared_host.ask(messages=turns, max_tokens=5).last
    assert isinstance(last, Finished)
    assert last.usage.cached > 0.5 * last.usage.prompt


def test_constrained_output_follows_its_schema(shared_host: Host) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    answer = shared_host.ask("Give me JSON.", max_tokens=60, constraint=Constraint("json_schema", {"schema": schema}))
    assert isinstance(json.loads(answer.text)["ok"], bool)


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"model": "no-such-model"}, 404, "model_not_found"),
        ({"model": "../tiny"}, 404, "model_not_found"),
        ({"text": "word " * 3000}, 400, "context_length_exceeded"),
        ({"sampling": Sampling(logit_bias={10**6: 1.0})}, 400, "invalid_value"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_runs(
    shared_host: Host, fields: dict[str, object], status: int, code: str
) -> None:
    with pytest.raises(Refusal) as refused:
        shared_host.start(**fields)  # type: ignore[arg-type]
    assert (refused.value.status, refused.value.code) == (status, code)


def test_a_full_line_is_refused_with_a_time_to_come_back(make_host: MakeHost) -> None:
    host = make_host(slots=1, queue_limit=1)
    running = [host.start(max_tokens=1500, sampling=ENDLESS)[0] for _ in range(2)]
    with pytest.raises(Refusal) as refused:
        host.start()
    assert (refused.value.status, refused.value.code) == (429, "queue_full")
    assert refused.value.retry_after
    for each in running:
        each.cancel()
        assert each.done.wait(10)
    host.ask(max_tokens=2)


def test_a_cancelled_request_ends_at_once_and_frees_the_engine(make_host: MakeHost) -> None:
    host = make_host(slots=1)
    long, answer = host.start(max_tokens=1500, sampling=ENDLESS)
    answer.wait(lambda a: bool(a.text))
    waiting, _ = host.start(max_tokens=2)
    long.cancel("client left")
    assert long.done.wait(10)
    assert isinstance(answer.last, Failed)
    assert answer.last.code == "cancelled"
    assert waiting.done.wait(20)
    assert not host.engine().busy


def test_a_cancel_that_overtakes_its_request_wins(make_host: MakeHost) -> None:
    host = make_host()
    host.runtime.cancel("late")
    with pytest.raises(Refusal) as refused:
        host.start(id="late")
    assert refused.value.status == 499


def test_a_killed_engine_is_a_pause_not_an_error(make_host: MakeHost) -> None:
    host = make_host()
    whole = host.ask("What is 2 plus 3?", max_tokens=300, sampling=ENDLESS).text
    running = [host.start("What is 2 plus 3?", max_tokens=300, sampling=ENDLESS) for _ in range(3)]
    for _, answer in running:
        answer.wait(lambda a: len(a.text) > 5)
    os.kill(host.engine().pid, signal.SIGKILL)
    for one, answer in running:
        assert one.done.wait(60)
        assert isinstance(answer.last, Finished), answer.last
        assert answer.text == whole
    assert host.engine().restarts == 1
    assert host.engine().state == "ready"


def test_waiting_is_told_while_the_engine_restarts(make_host: MakeHost) -> None:
    host = make_host()
    running, answer = host.start(max_tokens=1000, sampling=ENDLESS)
    answer.wait(lambda a: bool(a.text))
    os.kill(host.engine().pid, signal.SIGKILL)
    answer.wait(lambda a: any(isinstance(event, Waiting) and event.reason == "restart" for event in a.events))
    running.cancel()
    assert running.done.wait(10)


def test_who_kills_the_engine_again_and_again_is_named_and_the_others_go_on(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that aborts the process is played by a test that kills whenever that request runs."""
    # A real poison repeats at its place; this one kills a little later each time, which must not count as progress.
    monkeypatch.setattr(healing, "PROGRESS", 10_000)
    host = make_host()
    host.ask(max_tokens=2)
    engine = host.engine()
    innocent, calm = host.start("What is 2 plus 3?", max_tokens=1500, sampling=ENDLESS)
    calm.wait(lambda a: bool(a.text))
    culprit, answer = host.start("What is 4 plus 4?", max_tokens=1500, sampling=ENDLESS)
    while not culprit.done.is_set():
        if culprit._entry.seq in engine._sent and engine.state == "ready":
            deaths = engine.restarts
            engine.kill()
            while engine.restarts == deaths and not culprit.done.wait(0.01):
                pass
        culprit.done.wait(0.01)
    assert isinstance(answer.last, Failed)
    assert answer.last.code == "engine_poisoned"
    assert innocent.done.wait(60)
    assert isinstance(calm.last, Finished), calm.last
    assert isinstance(host.ask(max_tokens=2).last, Finished)


def test_a_model_that_cannot_be_loaded_is_502_and_can_be_tried_again(make_host: MakeHost, models_home: Path) -> None:
    host = make_host()
    broken = models_home / "models" / "broken"
    shutil.copytree(models_home / "models" / "tiny", broken)
    config = json.loads((broken / "config.json").read_text())
    try:
        (broken / "config.json").write_text(json.dumps({**config, "hidden_size": 128}))
        answer = host.ask(model="broken", max_tokens=2)
        assert isinstance(answer.last, Failed)
        assert (answer.last.status, answer.last.code) == (502, "model_load_failed")
        assert str(models_home) not in answer.last.message
        assert isinstance(host.ask(max_tokens=2).last, Finished)
        (broken / "config.json").write_text(json.dumps(config))
        assert isinstance(host.ask(model="broken", max_tokens=2).last, Finished)
    finally:
        shutil.rmtree(broken)


def test_a_model_that_is_known_not_to_load_is_refused_before_it_puts_another_out(make_host: MakeHost, models_home: Path) -> None:
    host = make_host(budget=300 * 1024 * 1024)
    host.ask(max_tokens=2)
    strange = models_home / "models" / "strange"
    shutil.copytree(models_home / "models" / "tiny", strange)
    config = json.loads((strange / "config.json").read_text())
    try:
        (strange / "config.json").write_text(json.dumps({**config, "model_type": "unheard_of"}))
        with pytest.raises(Refusal) as refused:
            host.start(model="strange")
        assert (refused.value.status, refused.value.code) == (502, "model_load_failed")
        assert "unheard_of" in refused.value.message
        assert host.runtime.residency.get("tiny") is not None
    finally:
        shutil.rmtree(strange)


def test_the_least_recently_used_model_makes_room_but_never_one_in_use(make_host: MakeHost) -> None:
    host = make_host(budget=300 * 1024 * 1024)
    host.ask(max_tokens=2)
    host.ask(model=EMBEDDER, kind="embedding", messages=[], inputs=["x"])
    assert host.runtime.residency.get("tiny") is None
    long, answer = host.start(max_tokens=1500, sampling=ENDLESS)
    assert host.runtime.residency.get(EMBEDDER) is None
    answer.wait(lambda a: any(isinstance(event, Text) for event in a.events))
    with pytest.raises(Refusal) as refused:
        host.start(model=EMBEDDER, kind="embedding", messages=[], inputs=["x"])
    assert (refused.value.status, refused.value.code) == (503, "memory_admission")
    long.cancel()
    assert long.done.wait(10)
    host.ask(model=EMBEDDER, kind="embedding", messages=[], inputs=["x"])
    host.runtime.residency.pin_only([EMBEDDER])
    with pytest.raises(Refusal):
        host.start(max_tokens=2)


def test_a_model_that_does_not_fit_waits_for_the_one_in_use(make_host: MakeHost) -> None:
    host = make_host(budget=300 * 1024 * 1024, room_wait=60)
    long, answer = host.start(max_tokens=400, sampling=ENDLESS)
    answer.wait(lambda a: any(isinstance(event, Text) for event in a.events))
    other = host.ask(model=EMBEDDER, kind="embedding", messages=[], inputs=["x"])
    assert long.done.is_set(), "it was neither put out nor waited for in vain"
    assert isinstance(answer.last, Finished)
    assert isinstance(other.last, Finished)


def test_a_model_larger_than_the_budget_is_refused_with_the_numbers(make_host: MakeHost) -> None:
    host = make_host(budget=10 * 1024 * 1024)
    with pytest.raises(Refusal) as refused:
        host.start()
    assert refused.value.code == "memory_admission"
    assert "10 MiB" in refused.value.message


def test_closing_ends_children_and_tells_their_requests(make_host: MakeHost) -> None:
    host = make_host()
    _, answer = host.start(max_tokens=1500, sampling=ENDLESS)
    answer.wait(lambda a: bool(a.text))
    engine = host.engine()
    host.runtime.close()
    assert isinstance(answer.last, Failed)
    assert answer.last.status == 503
    assert engine._child._process.returncode == 0
    with pytest.raises(Refusal):
        host.start()


def test_a_prompt_longer_than_memory_is_refused_with_both_numbers(make_host: MakeHost) -> None:
    from workers.engine.platform import SCRATCH_BYTES

    per_token, weights = 512, 421888
    # A quarter of what the weights leave is the prompt caches' share.
    host = make_host(budget=SCRATCH_BYTES + weights + 80 * per_token)
    last = host.ask("word " * 100, max_tokens=2).last
    assert isinstance(last, Failed)
    assert (last.status, last.code) == (400, "context_over_budget")
    assert " 60" in last.message
    short = host.ask("What is the capital of Japan?", max_tokens=500, sampling=ENDLESS).last
    assert isinstance(short, Finished)
    assert short.usage.prompt + short.usage.completion == 60


def test_an_idle_model_that_is_asked_just_now_stays(make_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host = make_host(keep_alive=1e-6)
    host.ask(max_tokens=2)
    looks = iter([False, True])  # not busy at the look, busy when it is to go
    monkeypatch.setattr(type(host.engine()), "busy", property(lambda self: next(looks, False)))
    host.runtime.residency.unload_idle()
    assert host.engine().state == "ready"


def test_an_unused_model_leaves_memory_unless_it_is_pinned(make_host: MakeHost) -> None:
    host = make_host(keep_alive=1e-6)
    host.ask(max_tokens=2)
    host.runtime.residency.pin_only(["tiny"])
    host.runtime.residency.unload_idle()
    assert host.engine().state == "ready"
    host.runtime.residency.pin_only([])
    host.runtime.residency.unload_idle()
    assert host.runtime.residency.get("tiny") is None
