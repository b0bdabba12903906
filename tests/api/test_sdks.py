"""Every surface through the unmodified SDKs in every way they offer: sync and async; parsed, raw, and as a stream of bytes;
and their own streams of events."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest

from tests.api.conftest import HELLO
from tests.system.stack import Stack

pytestmark = pytest.mark.stack

ASK = {"model": "tiny", "max_tokens": 6}
CHAT = {**ASK, "messages": HELLO, "temperature": 0}
RESPONSE = {"model": "tiny", "input": "What is the capital of France?", "max_output_tokens": 6, "temperature": 0}
MESSAGE = {**ASK, "messages": HELLO}
#: (SDK, resource, method, arguments, what the parsed answer must show)
Surface = tuple[str, str, str, dict[str, Any], Callable[[Any], Any]]
SURFACES: list[Surface] = [
    ("openai", "chat.completions", "create", CHAT, lambda a: a.choices[0].message.content),
    ("openai", "completions", "create", {**ASK, "prompt": "The river"}, lambda a: a.choices[0].text),
    ("openai", "responses", "create", RESPONSE, lambda a: a.output_text),
    ("openai", "responses.input_tokens", "count", {"model": "tiny", "input": "Hi"}, lambda a: a.input_tokens),
    ("openai", "conversations", "create", {"metadata": {"a": "b"}}, lambda a: a.id),
    ("openai", "embeddings", "create", {"model": "any", "input": ["a", "b"]}, lambda a: a.data[1].embedding),
    ("openai", "models", "list", {}, lambda a: a.data[0].id),
    ("openai", "models", "retrieve", {"model": "tiny"}, lambda a: a.id == "tiny"),
    ("openai", "chat.completions", "list", {"limit": 3}, lambda a: a.object == "list"),
    ("anthropic", "messages", "create", MESSAGE, lambda a: a.content[0].text),
    ("anthropic", "messages", "count_tokens", {"model": "tiny", "messages": HELLO}, lambda a: a.input_tokens),
    ("anthropic", "models", "list", {}, lambda a: a.data[0].id),
    ("anthropic", "models", "retrieve", {"model_id": "tiny"}, lambda a: a.id == "tiny"),
    ("anthropic", "beta.messages", "create", {**MESSAGE, "betas": ["context-1m-2025-08-07"]}, lambda a: a.content[0].text),
]
STREAMS: list[tuple[str, str, dict[str, Any], str]] = [
    ("openai", "chat.completions", CHAT, "chat.completion.chunk"),
    ("openai", "completions", {**ASK, "prompt": "The river"}, "text_completion"),
    ("openai", "responses", RESPONSE, "response.incomplete"),
    ("anthropic", "messages", MESSAGE, "message_stop"),
]


def ids(rows: list[Any]) -> list[str]:
    return [f"{row[0]}-{row[1]}-{row[2] if isinstance(row[2], str) else 'stream'}" for row in rows]


def resource(client: Any, path: str) -> Any:
    return operator.attrgetter(path)(client)


@pytest.mark.parametrize("surface", SURFACES, ids=ids(SURFACES))
def test_the_sync_sdk(stack: Stack, surface: Surface) -> None:
    sdk, path, method, arguments, shows = surface
    with getattr(stack, sdk)() as client:
        part = resource(client, path)
        assert shows(getattr(part, method)(**arguments))
        raw = getattr(part.with_raw_response, method)(**arguments)
        assert raw.headers["x-request-id"] and shows(raw.parse())
        with getattr(part.with_streaming_response, method)(**arguments) as answer:
            assert answer.status_code == 200 and b"".join(answer.iter_bytes()).startswith(b"{")


@pytest.mark.parametrize("surface", SURFACES, ids=ids(SURFACES))
def test_the_async_sdk(stack: Stack, surface: Surface) -> None:
    sdk, path, method, arguments, shows = surface

    async def ask() -> None:
        async with asynchronous(stack, sdk) as client:
            part = resource(client, path)
            assert shows(await getattr(part, method)(**arguments))
            raw = await getattr(part.with_raw_response, method)(**arguments)
            assert raw.headers["x-request-id"]
            async with getattr(part.with_streaming_response, method)(**arguments) as answer:
                assert b"".join([piece async for piece in answer.iter_bytes()]).startswith(b"{")

    asyncio.run(ask())


def asynchronous(stack: Stack, sdk: str) -> Any:
    if sdk == "openai":
        return openai.AsyncOpenAI(base_url=f"{stack.base_url}/v1", api_key="any", max_retries=0, timeout=60)
    return anthropic.AsyncAnthropic(base_url=stack.base_url, api_key="any", max_retries=0, timeout=60)


def kind(event: Any) -> str:
    return str(getattr(event, "type", None) or event.object)


@pytest.mark.parametrize(("sdk", "path", "arguments", "last"), STREAMS, ids=ids(STREAMS))
def test_streams_of_both(stack: Stack, sdk: str, path: str, arguments: dict[str, Any], last: str) -> None:
    with getattr(stack, sdk)() as client:
        events = [kind(event) for event in resource(client, path).create(**arguments, stream=True)]
        raw = resource(client, path).with_raw_response.create(**arguments, stream=True)
        assert [kind(event) for event in raw.parse()][-1] == events[-1] == last

    async def ask() -> list[str]:
        async with asynchronous(stack, sdk) as client:
            return [kind(event) async for event in await resource(client, path).create(**arguments, stream=True)]

    assert asyncio.run(ask())[-1] == last


def test_the_sdks_own_stream_helpers(stack: Stack) -> None:
    # These helpers raise at an answer that was cut.
    with stack.openai().chat.completions.stream(**{**CHAT, "max_tokens": 60}) as chat:
        assert chat.get_final_completion().choices[0].message.content
    with stack.openai().responses.stream(**{**RESPONSE, "max_output_tokens": 60}) as response:
        assert response.get_final_response().output_text
    with stack.anthropic().messages.stream(**MESSAGE) as message:
        assert "".join(message.text_stream) == message.get_final_text()
