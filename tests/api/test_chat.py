"""Chat completions on the real platform: what clients send, and what they must not be able to send."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from tests.api.conftest import HELLO
from tests.api.sse import chunks, comments, frames
from tests.system.stack import Stack

pytestmark = pytest.mark.stack

CHAT = "/v1/chat/completions"
Post = Callable[..., httpx.Response]


def ask(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": HELLO, "max_tokens": 8, "temperature": 0, **more}


def history(name: str = "get_code", **assistant: Any) -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": "{}"}}
    return [
        {"role": "user", "content": "What is the code?"},
        {"role": "assistant", "content": None, "tool_calls": [call], **assistant},
        {"role": "tool", "tool_call_id": "c1", "content": "7131"},
    ]


def tool(name: str = "get_code", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}, **more}}


def test_the_sdk_chats(stack: Stack) -> None:
    answer = stack.openai().chat.completions.create(**ask())
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_joins_to_the_whole_answer(stack: Stack) -> None:
    client = stack.openai()
    whole = client.chat.completions.create(**ask()).choices[0].message.content
    parts = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**ask(stream=True))]
    assert "".join(parts) == whole


def test_the_async_sdk_streams_many_at_once(stack: Stack) -> None:
    async def one(client: openai.AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(**ask(stream=True))
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def all_of_them() -> list[str]:
        async with stack.async_openai() as client:
            return await asyncio.gather(*(one(client) for _ in range(12)))

    answers = asyncio.run(all_of_them())
    assert len(set(answers)) == 1
    assert "Paris" in answers[0]


def test_chunks_share_one_envelope(post: Post) -> None:
    response = post(CHAT, ask(stream=True))
    assert response.headers["x-accel-buffering"] == "no"
    assert comments(response.text), "the first bytes are a comment"
    found = chunks(response.text)
    assert len({(chunk["id"], chunk["created"], chunk["object"]) for chunk in found}) == 1
    assert found[0]["object"] == "chat.completion.chunk"
    assert found[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [c["choices"][0]["finish_reason"] for c in found if c["choices"][0]["finish_reason"]] == ["stop"]


def test_usage_comes_only_when_asked_for(post: Post) -> None:
    with_usage = chunks(post(CHAT, ask(stream=True, stream_options={"include_usage": True})).text)
    without = chunks(post(CHAT, ask(stream=True)).text)
    plain = post(CHAT, ask()).json()["usage"]
    assert with_usage[-1]["choices"] == []
    assert {k: with_usage[-1]["usage"][k] for k in ("prompt_tokens", "completion_tokens")} == {
        k: plain[k] for k in ("prompt_tokens", "completion_tokens")
    }
    assert all(chunk["usage"] is None for chunk in with_usage[:-1])
    assert all("usage" not in chunk and chunk["choices"] for chunk in without)


def test_parts_are_joined_for_every_role(post: Post) -> None:
    whole = ask(messages=[{"role": "user", "content": "Reply with the word pear"}])
    parts = [{"type": "text", "text": "Reply with "}, {"type": "text", "text": "the word pear"}]
    split = ask(messages=[{"role": "user", "content": parts}])
    counts = [post(CHAT, body).json()["usage"]["prompt_tokens"] for body in (whole, split)]
    assert abs(counts[0] - counts[1]) <= 2
    turns = history()
    turns[2]["content"] = [{"type": "text", "text": "71"}, {"type": "text", "text": "31"}]
    assert post(CHAT, ask(messages=turns, tools=[tool()])).status_code == 200


def test_a_tool_call_without_content_reaches_the_model(post: Post) -> None:
    counts = []
    for name in ("get_code", "get_code_long_name_for_the_same"):
        response = post(CHAT, ask(messages=history(name), tools=[tool()]))
        assert response.status_code == 200, response.text
        counts.append(response.json()["usage"]["prompt_tokens"])
    assert counts[1] > counts[0]


@pytest.mark.parametrize("content", ["", None])
def test_an_empty_assistant_turn_does_not_poison_a_conversation(post: Post, content: str | None) -> None:
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": content},
        {"role": "user", "content": "still there?"},
    ]
    assert post(CHAT, ask(messages=turns)).status_code == 200


def test_developer_is_system(post: Post) -> None:
    counts = []
    for role in ("system", "developer"):
        turns = [{"role": role, "content": "Answer only with the word TULIP."}, *HELLO]
        counts.append(post(CHAT, ask(messages=turns)).json()["usage"]["prompt_tokens"])
    assert abs(counts[0] - counts[1]) <= 2


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [None]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "ai", "content": "hello"}]}, "messages[0].role"),
        ({"messages": [{"role": "USER", "content": "hello"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": history()[:2]}, "messages[1]"),
        ({"messages": [*history()[:2], {"role": "user", "content": "go on"}]}, "messages[1]"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": -15335}, "max_completion_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": -0.1}, "min_p"),
        ({"repetition_penalty": -1.0}, "repetition_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"xtc_threshold": 0.6}, "xtc_threshold"),
        ({"seed": 2**80}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 100}, "n"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"logit_bias": {"5": 1000}}, "logit_bias"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"logit_bias": {"999999999": 1}}, "logit_bias"),
        ({"logit_bias": [[5, 1]]}, "logit_bias"),
        ({"logit_bias": {"5": "x"}}, "logit_bias"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 25}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 2.5}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"tool_choice": "banana", "tools": [tool()]}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "missing"}}, "tools": [tool()]}, "tool_choice"),
        (
            {"tools": [tool()], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [{"function": 5}]}}},
            "tool_choice.tools[0].function",
        ),
        ({"tools": [{}]}, "tools[0]"),
        ({"tools": [tool(parameters={"type": "object", "properties": []})]}, "tools[0].function.parameters.properties"),
        ({"tools": [tool(parameters={"type": "object", "required": "a"})]}, "tools[0].function.parameters.required"),
        ({"tools": [tool("get time!")]}, "tools[0]"),
        ({"tools": [tool("x" * 65)]}, "tools[0]"),
        ({"tools": [tool(), tool()]}, "tools[1]"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0]"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": "yes"}}},
            "response_format.json_schema.strict",
        ),
        ({"response_format": {"type": "json_object", "schema": {"$ref": "#"}}}, "response_format"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a": "\0"}}, "metadata"),
        ({"hlg": {"banana": 1}}, "hlg.banana"),
        ({"model": 5}, "model"),
    ],
)
def test_bad_fields_are_named(refused: Callable[..., dict[str, Any]], change: dict[str, Any], param: str) -> None:
    body = {key: value for key, value in {**ask(), **change}.items() if not (key == "messages" and value is None)}
    error = refused(CHAT, body, 400, param)
    assert error["type"] == "invalid_request_error"
    assert error["code"]


@pytest.mark.parametrize("options", [{"include_usage": "yes"}, [], {"include_usage": True}])
def test_stream_options_are_checked(post: Post, options: Any) -> None:
    stream = options != {"include_usage": True}
    response = post(CHAT, ask(stream=stream, stream_options=options))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "stream_options"


@pytest.mark.parametrize(
    "change",
    [
        {"stream_options": None, "stream": True},
        {"max_tokens": None, "max_completion_tokens": 3},
        {"stop": None},
        {"stop": "END"},
        {"stop": ["END"]},
        {"stop": []},
        {"stop": ""},
        {"stop": [""]},
        {"logit_bias": {}},
        {"logit_bias": {"5": 100}},
        {"tools": []},
        {"tools": None},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tools": [tool(parameters=None)]},
        {"tools": [tool(parameters={"type": "object", "properties": None, "required": None})]},
        {"stop": ["x" * 200_000]},
        {"messages": [{"role": "system", "content": "Be brief."}]},
        {"user": "u1", "service_tier": "auto", "verbosity": "low", "safety_identifier": "s"},
    ],
)
def test_accepted_forms(post: Post, change: dict[str, Any]) -> None:
    response = post(CHAT, {**ask(max_tokens=3), **change})
    assert response.status_code == 200, response.text


def test_fields_without_effect_are_named(post: Post) -> None:
    response = post(CHAT, ask(user="u1", banana=1))
    assert response.headers["x-mlxplatform-ignored"] == "user, banana"


def test_max_completion_tokens_wins(post: Post) -> None:
    answer = post(CHAT, ask(max_tokens=50, max_completion_tokens=2)).json()
    assert answer["usage"]["completion_tokens"] == 2
    assert answer["choices"][0]["finish_reason"] == "length"


def test_an_unknown_model_is_answered_by_the_current_one_and_said_so(post: Post) -> None:
    response = post(CHAT, ask(model="gpt-9"))
    assert response.status_code == 200
    assert response.json()["model"] == "tiny"
    assert "gpt-9" in response.headers["warning"]
    assert "warning" not in post(CHAT, ask()).headers


@pytest.mark.parametrize(
    "name", ["../../etc", "/etc", "./x", "~", "file:///etc", "https://127.0.0.1/x", "a\x00b", "models/../../x", "a" * 4096]
)
def test_a_model_that_looks_like_a_path_does_not_exist(refused: Callable[..., dict[str, Any]], name: str) -> None:
    error = refused(CHAT, ask(model=name), 404, "model")
    assert error["code"] == "model_not_found"
    assert "etc" not in error["message"]


def test_choices_differ_and_repeat(post: Post) -> None:
    body = ask(n=3, temperature=1, seed=5, max_tokens=20, messages=[{"role": "user", "content": "abc"}])
    first, second = post(CHAT, body).json(), post(CHAT, body).json()
    texts = [choice["message"]["content"] for choice in first["choices"]]
    assert [choice["index"] for choice in first["choices"]] == [0, 1, 2]
    assert len(set(texts)) > 1
    assert texts == [choice["message"]["content"] for choice in second["choices"]]
    streamed = chunks(post(CHAT, {**body, "stream": True, "stream_options": {"include_usage": True}}).text)
    for index, text in enumerate(texts):
        own = [c["choices"][0] for c in streamed if c["choices"] and c["choices"][0]["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in own) == text
        assert sum(choice["finish_reason"] is not None for choice in own) == 1
    assert streamed[-1]["usage"]["completion_tokens"] == first["usage"]["completion_tokens"]


def test_a_prompt_beyond_the_window_is_refused_with_both_numbers(post: Post) -> None:
    window = post("/v1/chat/completions", ask()).status_code == 200 and 2048
    body = ask(messages=[{"role": "user", "content": "word " * (window + 500)}])
    for stream in (False, True):
        response = post(CHAT, {**body, "stream": stream})
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert str(window) in error["message"]
    assert post(CHAT, ask()).status_code == 200


def test_stored_completions_live_until_deleted(stack: Stack) -> None:
    completions = stack.openai().chat.completions
    made = completions.create(**ask(store=True, metadata={"run": "7"}))
    assert completions.retrieve(made.id).choices[0].message.content == made.choices[0].message.content
    assert made.id in [item.id for item in completions.list(limit=100)]
    assert completions.messages.list(made.id).data[0].content == HELLO[0]["content"]
    assert completions.update(made.id, metadata={"run": "8"}).metadata == {"run": "8"}
    found = {value: [item.id for item in completions.list(metadata={"run": value})] for value in ("7", "8")}
    assert found == {"7": [], "8": [made.id]}
    with pytest.raises(openai.BadRequestError) as lost:
        completions.list(after="chatcmpl-none")
    assert lost.value.param == "after"
    assert completions.update(made.id, metadata=None).metadata == {}
    assert completions.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        completions.retrieve(made.id)


@pytest.mark.parametrize("last", ["999999", "-1", "abc", "", "1" + "0" * 30, "1e3"])
def test_a_last_event_id_that_cannot_be_served_replays_from_the_start(stack: Stack, post: Post, last: str) -> None:
    whole = post(CHAT, ask(store=True, stream=True))
    path = f"{CHAT}/{chunks(whole.text)[0]['id']}"
    again = stack.http.get(path, params={"stream": "true"}, headers={"Last-Event-ID": last.encode()})
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks(again.text)) == "".join(
        c["choices"][0]["delta"].get("content") or "" for c in chunks(whole.text)
    )
    beyond = stack.http.get(path, params={"stream": "true", "starting_after": 999999})
    assert (beyond.status_code, beyond.json()["error"]["param"]) == (400, "starting_after")


def test_a_stored_stream_resumes_at_every_cut(stack: Stack, post: Post) -> None:
    whole = post(CHAT, ask(stream=True, store=True, max_tokens=12, messages=[{"role": "user", "content": "xyz"}])).text
    found = frames(whole)
    completion = found[0].json["id"]

    def text(some: list[Any]) -> str:
        payloads = [frame.json for frame in some if frame.data != "[DONE]"]
        return "".join(p["choices"][0]["delta"].get("content") or "" for p in payloads if p["choices"])

    numbers = [int(frame.id) for frame in found if frame.id]
    assert numbers == sorted(set(numbers))
    for cut, frame in enumerate(found):
        if frame.id:
            rest = stack.http.get(f"{CHAT}/{completion}", params={"stream": "true", "starting_after": frame.id}).text
            assert text(found[: cut + 1]) + text(frames(rest)) == text(found)
            assert rest.endswith("data: [DONE]\n\n")
