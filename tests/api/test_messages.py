"""Anthropic's Messages API on the real platform, through the unmodified SDK and raw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import pytest

from tests.api.conftest import HELLO
from tests.api.sse import frames
from tests.system.stack import Stack

pytestmark = pytest.mark.stack

PATH = "/v1/messages"
Post = Callable[..., httpx.Response]


def ask(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 8, "temperature": 0, "messages": HELLO, **more}


def tool(name: str = "lookup") -> dict[str, Any]:
    return {"name": name, "description": "Looks up", "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}}}


def with_result(*results: dict[str, Any], text: str | None = None) -> list[dict[str, Any]]:
    uses = [{"type": "tool_use", "id": f"t{i}", "name": "lookup", "input": {"q": "x"}} for i in range(max(1, len(results)))]
    answers: list[dict[str, Any]] = [
        {"type": "tool_result", "tool_use_id": f"t{i}", **result} for i, result in enumerate(results)
    ]
    if text is not None:
        answers.append({"type": "text", "text": text})
    return [*HELLO, {"role": "assistant", "content": uses}, {"role": "user", "content": answers or "go on"}]


def test_the_sdk_gets_a_message(stack: Stack) -> None:
    message = stack.anthropic().messages.create(model="tiny", max_tokens=12, messages=HELLO, extra_body={"temperature": 0})
    assert "Paris" in message.content[0].text
    assert message.stop_reason == "end_turn"
    assert message.usage.input_tokens > 0


def test_the_sdk_streams_the_same(stack: Stack) -> None:
    client = stack.anthropic()
    whole = client.messages.create(model="tiny", max_tokens=12, messages=HELLO, extra_body={"temperature": 0})
    with client.messages.stream(model="tiny", max_tokens=12, messages=HELLO, extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_the_event_grammar(post: Post) -> None:
    text = post(PATH, ask(stream=True)).text
    found = frames(text)
    assert all(frame.event == frame.json["type"] for frame in found)
    kinds = [frame.event for frame in found if frame.event != "ping"]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert found[0].json["message"]["usage"]["input_tokens"] > 0
    assert next(f for f in found if f.event == "ping").json == {"type": "ping"}
    delta = next(f for f in found if f.event == "message_delta").json
    assert delta["delta"]["stop_reason"] == "end_turn"
    assert delta["usage"]["output_tokens"] > 0
    assert "[DONE]" not in text


def test_system_blocks_are_counted_like_one_string(post: Post) -> None:
    blocks = [
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Use English."},
    ]
    user = [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}]
    split = post(PATH, ask(system=blocks, messages=user, metadata={"user_id": "u1"}))
    joined = post(PATH, ask(system="Be brief.\nUse English.", messages=user))
    assert split.status_code == 200
    assert abs(split.json()["usage"]["input_tokens"] - joined.json()["usage"]["input_tokens"]) <= 2


@pytest.mark.parametrize("query", ["", "?beta=true"])
def test_tokens_are_counted_as_the_message_counts_them(post: Post, query: str) -> None:
    body = {key: value for key, value in ask(system="Be brief.").items() if key not in {"max_tokens", "temperature"}}
    counted = post(f"{PATH}/count_tokens{query}", body)
    assert counted.json() == {"input_tokens": post(PATH, ask(system="Be brief.")).json()["usage"]["input_tokens"]}


def test_counting_validates_like_asking(post: Post) -> None:
    assert post(f"{PATH}/count_tokens", {"model": "tiny", "messages": []}).json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "result",
    [{"content": "ok"}, {"content": [{"type": "text", "text": "ok"}]}, {}, {"content": []}, {"content": "bad", "is_error": True}],
)
def test_tool_results_in_every_form(post: Post, result: dict[str, Any]) -> None:
    response = post(PATH, ask(messages=with_result(result, text="go on"), tools=[tool()]))
    assert response.status_code == 200, response.text


def test_two_results_and_a_text_in_one_turn(post: Post) -> None:
    response = post(PATH, ask(messages=with_result({"content": "1"}, {"content": "2"}, text="and now?"), tools=[tool()]))
    assert response.status_code == 200, response.text


def test_an_error_result_reaches_the_model_as_text(post: Post) -> None:
    counts = [
        post(PATH, ask(messages=with_result({"content": "x", **more}), tools=[tool()])).json()["usage"]["input_tokens"]
        for more in ({}, {"is_error": True})
    ]
    assert counts[1] > counts[0]


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": None},
        {"max_tokens": 0},
        {"temperature": -1},
        {"temperature": 1.5},
        {"top_k": -1},
        {"messages": []},
        {"messages": [{"role": "user", "content": ""}]},
        {"messages": [{"role": "user", "content": []}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "banana"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "iVBORw0KGgo="}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "x"}}]}]},
        {"messages": with_result()},
        {"stop_sequences": [""]},
        {"stop_sequences": [" "]},
        {"tools": [{"name": "x"}]},
        {"tools": [{"name": "bad name", "input_schema": {"type": "object"}}]},
        {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "tool", "name": "missing"}, "tools": [tool()]},
        {"tool_choice": "banana"},
        {"thinking": {"type": "banana"}},
        {"mcp_servers": [{"url": "http://x"}]},
    ],
)
def test_bad_requests_in_anthropics_envelope(post: Post, change: dict[str, Any]) -> None:
    body = {key: value for key, value in {**ask(), **change}.items() if value is not None}
    for stream in (False, True):
        response = post(PATH, {**body, "stream": stream})
        assert response.status_code == 400, response.text
        answer = response.json()
        assert answer["type"] == "error"
        assert answer["error"]["type"] == "invalid_request_error"
        assert answer["request_id"] == response.headers["request-id"]


def test_five_stop_sequences_and_the_one_that_hit(post: Post) -> None:
    answer = post(PATH, ask(stop_sequences=["Paris", "%b", "%c", "%d", "%e"])).json()
    assert answer["stop_reason"] == "stop_sequence"
    assert answer["stop_sequence"] == "Paris"
    assert "Paris" not in answer["content"][0]["text"]


def test_traffic_of_a_coding_agent(stack: Stack) -> None:
    client = stack.anthropic()
    tools = [tool(f"tool_{index}") for index in range(4)]
    message = client.messages.create(
        model="claude-sonnet-4-5",
        max_tokens=4,
        system=[{"type": "text", "text": "You help. " * 20, "cache_control": {"type": "ephemeral"}}],
        messages=with_result({"content": "line\n" * 50}),
        tools=[*tools, {"type": "web_search_20250305", "name": "web_search"}],
        metadata={"user_id": "u"},
    )
    assert message.model == "tiny"


def test_models_in_the_anthropic_list(stack: Stack) -> None:
    assert "tiny" in [model.id for model in stack.anthropic().models.list()]
    assert stack.anthropic().models.retrieve("tiny").display_name == "tiny"


def test_a_version_that_is_none(post: Post) -> None:
    assert post(PATH, ask(), headers={"anthropic-version": "banana"}).status_code == 400
    assert post(PATH, ask(), headers={"anthropic-version": "2023-06-01"}).status_code == 200


def test_the_sdk_raises_its_own_errors(stack: Stack) -> None:
    with pytest.raises(anthropic.BadRequestError):
        stack.anthropic().messages.create(model="tiny", max_tokens=0, messages=HELLO)
    with pytest.raises(anthropic.NotFoundError):
        stack.anthropic().messages.create(model="/etc/passwd", max_tokens=1, messages=HELLO)
