"""Requests that other MLX servers answer wrongly or not at all, over HTTP on the running platform."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.api.conftest import HELLO
from tests.system.stack import Stack

Post = Callable[..., httpx.Response]
CHAT = "/v1/chat/completions"


def chat(stack: Stack, **fields: Any) -> dict[str, Any]:
    return {"model": stack.model, "messages": HELLO, "max_tokens": 6, "temperature": 0, **fields}


def frames(response: httpx.Response) -> list[Any]:
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize(
    "change",
    [{"temperature": None}, {"xtc_probability": 1, "xtc_threshold": 0}, {"top_k": 10_000_000}, {"seed": 1, "temperature": 1}],
)
def test_odd_but_meaningful_sampling_values_are_answered(stack: Stack, post: Post, change: dict[str, Any]) -> None:
    answer = post(CHAT, chat(stack, **change))
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] > 0


def test_empty_stream_options_end_like_any_stream(stack: Stack, post: Post) -> None:
    assert frames(post(CHAT, chat(stack, stream=True, stream_options={})))


def test_streams_carry_their_log_probabilities(stack: Stack, post: Post) -> None:
    found = frames(post(CHAT, chat(stack, stream=True, logprobs=True, top_logprobs=2)))
    logprobs = [
        entry for frame in found for choice in frame["choices"] for entry in (choice.get("logprobs") or {}).get("content", [])
    ]
    assert len(logprobs) >= 3
    assert all(len(entry["top_logprobs"]) == 2 for entry in logprobs)


@pytest.fixture
def bait() -> Iterator[tuple[str, list[str]]]:
    """A web server on this machine that nobody should be made to visit."""
    visits: list[str] = []

    class Visited(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            visits.append(self.path)
            self.send_error(404)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Visited)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/secret.png", visits
    server.shutdown()


def test_no_address_in_a_request_is_visited(stack: Stack, post: Post, bait: tuple[str, list[str]]) -> None:
    url, visits = bait
    content = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    answer = post(CHAT, chat(stack, messages=[{"role": "user", "content": content}]))
    assert 400 <= answer.status_code < 500, answer.text
    assert visits == []
