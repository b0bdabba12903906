"""Tools and constrained output on the real platform. The model is tiny: what holds must hold by the grammar alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.api.conftest import HELLO
from tests.api.sse import chunks, strict
from tests.system.stack import Stack

pytestmark = pytest.mark.stack

CHAT = "/v1/chat/completions"
Post = Callable[..., httpx.Response]
#: Arguments that end by themselves: a model this small would count for ever in an open integer.
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "f"}}


def ask(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": HELLO, "max_tokens": 200, "temperature": 0, **more}


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_demanded_call_is_made(post: Post, choice: Any) -> None:
    whole = post(CHAT, ask(tools=[TOOL], tool_choice=choice)).json()["choices"][0]
    assert whole["finish_reason"] == "tool_calls"
    call = whole["message"]["tool_calls"][0]
    assert call["function"]["name"] == "f"
    assert set(json.loads(call["function"]["arguments"])) == {"a", "b"}
    assert whole["message"]["content"] is None


def test_a_streamed_call_adds_up(post: Post) -> None:
    found = chunks(post(CHAT, ask(tools=[TOOL], tool_choice="required", stream=True)).text)
    entries = [entry for c in found for entry in c["choices"][0]["delta"].get("tool_calls", [])]
    first: dict[int, dict[str, Any]] = {}
    arguments: dict[int, str] = {}
    for entry in entries:
        if entry["index"] not in first:
            first[entry["index"]] = entry
            assert entry["id"] and entry["type"] == "function" and entry["function"]["name"] == "f"
        arguments[entry["index"]] = arguments.get(entry["index"], "") + entry["function"]["arguments"]
    assert first
    assert all(set(json.loads(text)) == {"a", "b"} for text in arguments.values())
    assert [c["choices"][0]["finish_reason"] for c in found][-1] == "tool_calls"


def test_no_calls_when_none_are_wanted(post: Post) -> None:
    message = post(CHAT, ask(tools=[TOOL], tool_choice="none", max_tokens=20)).json()["choices"][0]["message"]
    assert "tool_calls" not in message
    assert "<tool_call>" not in message["content"]


def test_calls_in_every_protocol(stack: Stack) -> None:
    anthropic_tool = {"name": "f", "input_schema": SCHEMA}
    message = stack.anthropic().messages.create(
        model="tiny",
        max_tokens=200,
        messages=HELLO,
        tools=[anthropic_tool],
        tool_choice={"type": "any"},
        extra_body={"temperature": 0},
    )
    assert message.stop_reason == "tool_use"
    block = next(block for block in message.content if block.type == "tool_use")
    assert (block.name, set(block.input)) == ("f", {"a", "b"})
    with stack.anthropic().messages.stream(
        model="tiny", max_tokens=200, messages=HELLO, tools=[anthropic_tool], tool_choice={"type": "tool", "name": "f"}
    ) as stream:
        final = stream.get_final_message()
    assert any(block.type == "tool_use" and set(block.input) == {"a", "b"} for block in final.content)

    client = stack.openai()
    tool = {"type": "function", "name": "f", "parameters": SCHEMA}
    body = {"model": "tiny", "input": HELLO[0]["content"], "tools": [tool], "temperature": 0, "max_output_tokens": 200}
    first = client.responses.create(**body, tool_choice="required")
    call = next(item for item in first.output if item.type == "function_call")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
    others = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "0"}
        for item in first.output
        if item.type == "function_call" and item.call_id != call.call_id
    ]
    chained = client.responses.create(**{**body, "input": [output, *others]}, previous_response_id=first.id, tool_choice="none")
    kept = [item.model_dump(exclude_none=True) for item in first.output if item.type != "reasoning"]
    replayed = client.responses.create(
        **{**body, "input": [{"role": "user", "content": HELLO[0]["content"]}, *kept, output, *others]}, tool_choice="none"
    )
    assert abs(chained.usage.input_tokens - replayed.usage.input_tokens) <= 3


@pytest.mark.parametrize("stream", [False, True])
def test_answers_follow_their_schema(post: Post, stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "t", "strict": True, "schema": SCHEMA}}
    for seed in range(3):
        response = post(CHAT, ask(response_format=form, temperature=1, seed=seed, stream=stream))
        if stream:
            text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks(response.text))
        else:
            text = response.json()["choices"][0]["message"]["content"]
        assert set(strict(text)) == {"a", "b"}


def test_choices_and_patterns(post: Post) -> None:
    def content(**more: Any) -> str:
        text: str = post(CHAT, ask(temperature=1, **more)).json()["choices"][0]["message"]["content"]
        return text

    assert content(guided_choice=["yes", "no"]) in {"yes", "no"}
    assert content(guided_regex="[ab]{3}").strip("ab") == ""
    assert content(structured_outputs={"choice": ["x"]}) == "x"


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_cannot_be_compiled_is_refused(post: Post, stream: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "([a-z"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "t", "strict": True, "schema": schema}}
    response = post(CHAT, ask(response_format=form, stream=stream))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "response_format"
    assert post(CHAT, ask(max_tokens=2)).status_code == 200


def test_logprobs_of_impossible_tokens_are_numbers(post: Post) -> None:
    body = ask(logprobs=True, top_logprobs=5, guided_choice=["yes", "no"])
    whole = strict(post(CHAT, body).text)["choices"][0]["logprobs"]["content"]
    assert whole and all(len(entry["top_logprobs"]) == 5 for entry in whole)
    streamed = [
        e
        for c in chunks(post(CHAT, {**body, "stream": True}).text)
        for e in (c["choices"][0]["logprobs"] or {}).get("content", [])
    ]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in whole]
