"""Constraints, forced tools, seeds and penalties on a real engine child."""

from __future__ import annotations

import json

import pytest

from mlxplatform.inference.contract import Constraint, Finished, Refusal, Sampling, Text, Tool, ToolCall
from tests.engine.conftest import Host

WEATHER = Tool(
    "get_weather",
    "Finds the weather",
    {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_schema_the_model_has_never_seen_is_followed(shared_host: Host, temperature: float) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}, "n": {"type": "integer", "minimum": 10, "maximum": 99}},
        "required": ["colour", "n"],
        "additionalProperties": False,
    }
    answer = shared_host.ask(
        "Tell a joke.",
        max_tokens=200,
        sampling=Sampling(temperature=temperature, seed=1),
        constraint=Constraint("json_schema", schema),
    )
    value = json.loads(answer.text)
    assert set(value) == {"colour", "n"}
    assert value["colour"] in ("red", "blue") and 10 <= value["n"] <= 99
    assert isinstance(answer.last, Finished) and answer.last.reason == "stop"


def test_choice_and_regex(shared_host: Host) -> None:
    assert shared_host.ask("Tell a joke.", max_tokens=50, constraint=Constraint("choice", ["maybe", "never"])).text in (
        "maybe",
        "never",
    )
    text = shared_host.ask("Tell a joke.", max_tokens=50, constraint=Constraint("regex", r"[A-C]{3}-[0-9]{2}")).text
    assert len(text) == 6 and text[3] == "-"


@pytest.mark.parametrize("choice", ["required", "get_weather"])
def test_a_forced_tool_is_called(shared_host: Host, choice: str) -> None:
    answer = shared_host.ask("Say hello.", max_tokens=200, tools=[WEATHER], tool_choice=choice)
    calls = [event for event in answer.events if isinstance(event, ToolCall)]
    assert calls and {call.name for call in calls} == {"get_weather"}
    arguments = json.loads(calls[0].arguments)
    assert arguments["city"] in ("Oslo", "Rome") and 1 <= arguments["days"] <= 9
    assert not any(isinstance(event, Text) and event.text.strip() for event in answer.events)
    assert isinstance(answer.last, Finished) and answer.last.reason == "tool_calls"


def test_only_the_listed_tools_are_called(shared_host: Host) -> None:
    tools = [WEATHER, Tool("aaa"), Tool("bbb")]
    answer = shared_host.ask(max_tokens=200, tools=tools, tool_choice="required", constraint=Constraint("tool_call", ["bbb"]))
    assert [event.name for event in answer.events if isinstance(event, ToolCall)] == ["bbb"]


def test_an_impossible_schema_is_refused_and_the_next_request_works(shared_host: Host) -> None:
    broken = {"type": "object", "properties": {"a": {"type": "string", "pattern": "([a-z"}}, "required": ["a"]}
    with pytest.raises(Refusal) as refused:
        shared_host.ask("x", max_tokens=5, constraint=Constraint("json_schema", broken))
    assert refused.value.status == 400
    assert shared_host.ask("What is the capital of Japan?", max_tokens=40).text == "The capital of Japan is Tokyo."


def test_a_seed_repeats_and_other_seeds_differ(shared_host: Host) -> None:
    def text(seed: int | None) -> str:
        return shared_host.ask("Tell a story.", max_tokens=40, sampling=Sampling(temperature=1.5, seed=seed)).text

    assert text(42) == text(42)
    assert text(42) != text(7)
    assert len({text(None) for _ in range(3)}) > 1


def test_an_unconstrained_answer_beside_constrained_ones_is_unchanged(shared_host: Host) -> None:
    started = [
        shared_host.start("Tell a joke.", max_tokens=60, constraint=Constraint("choice", ["maybe so", "never ever"])),
        shared_host.start("What is the capital of Japan?", max_tokens=40),
        shared_host.start(
            "x", max_tokens=20, sampling=Sampling(temperature=1.0, top_k=10**6, logit_bias={5: 3.0}, presence_penalty=1.0)
        ),
    ]
    for running, _ in started:
        assert running.done.wait(60)
    assert started[1][1].text == "The capital of Japan is Tokyo."
    assert started[0][1].text in ("maybe so", "never ever")


def test_log_probabilities_of_impossible_tokens_are_numbers(shared_host: Host) -> None:
    answer = shared_host.ask("x", max_tokens=10, logprobs=5, constraint=Constraint("choice", ["maybe"]))
    entries = [entry for event in answer.events if isinstance(event, Text) for entry in event.logprobs]
    assert entries and all(entry.logprob > -10_000 and all(value > -10_000 for _, _, value in entry.top) for entry in entries)
    json.dumps([[entry.logprob, entry.top] for entry in entries], allow_nan=False)
