"""A stored stream across deaths: of the web process between two events, of its client's patience, of the broker."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.system.stack import Stack, eventually
from tests.system.test_faults import OwnBroker

pytestmark = pytest.mark.stack

#: The tokens that end an answer, forbidden.
ENDLESS = {"logit_bias": {"0": -100, "2": -100}}
#: For a protocol without biases: an answer that its grammar does not let end.
LONG = {"type": "json_schema", "schema": {"type": "array", "items": {"type": "integer"}, "minItems": 900}}
TURN = [{"role": "user", "content": "xyz"}]
CHAT = {"model": "tiny", "messages": TURN, "store": True, "stream": True, "temperature": 0, **ENDLESS}


def chunks(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(id, data) of each frame of a chat stream; the last may be an error."""
    number = ""
    for line in lines:
        if line.startswith("id:"):
            number = line[3:].strip()
        elif line.startswith("data:") and "[DONE]" not in line:
            yield number, json.loads(line[5:])


def content(data: dict[str, Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in data.get("choices", ()))


def cut(
    stack: Stack, method: str, path: str, kill: Callable[[], object], read: int, **request: Any
) -> list[tuple[str, dict[str, Any]]]:
    """Read some frames of a stream, kill, and return what had been read when the connection broke."""
    seen: list[tuple[str, dict[str, Any]]] = []
    try:
        with stack.http.stream(method, path, **request) as answer:
            for frame in chunks(answer.iter_lines()):
                seen.append(frame)
                if len(seen) == read:
                    kill()
    except httpx.TransportError:
        return seen
    raise AssertionError("the stream ended before its server was killed")


def test_a_chat_stream_goes_on_after_the_web_process_was_killed(fresh_stack: Stack) -> None:
    stack = fresh_stack
    kill = lambda: stack.kill_and_wait("web")  # noqa: E731
    seen = cut(stack, "POST", "/v1/chat/completions", kill, 20, json={**CHAT, "max_tokens": 1500})
    path = f"/v1/chat/completions/{seen[0][1]['id']}"
    eventually(lambda: stack.http.get("/v1").status_code == 200, what="the web process")

    def resumed(after: str) -> str:
        with stack.http.stream("GET", path, params={"stream": "true"}, headers={"Last-Event-ID": after}) as answer:
            return "".join(content(data) for _, data in chunks(answer.iter_lines()))

    rest = resumed(seen[-1][0])
    whole = stack.http.get(path).json()["choices"][0]
    assert whole["finish_reason"] == "length"
    text = whole["message"]["content"]
    assert "".join(content(data) for _, data in seen) + rest == text
    for count in range(1, len(seen)):
        assert "".join(content(data) for _, data in seen[:count]) + resumed(seen[count - 1][0]) == text
    line = eventually(lambda: stack.http.get(f"/api/requests/{path.rsplit('/')[-1]}").json()["request"], what="its line")
    assert line["outcome"] == "incomplete" and line["completion_tokens"] == 1500


def test_a_response_goes_on_after_the_web_process_was_killed(fresh_stack: Stack) -> None:
    stack = fresh_stack
    client = stack.openai()
    body = {"model": "tiny", "input": "xyz", "max_output_tokens": 1500, "temperature": 0, "stream": True, "extra_body": ENDLESS}
    seen = []
    with pytest.raises(openai.APIConnectionError):
        for event in client.responses.create(**body):
            seen.append(event)
            if len(seen) == 30:
                stack.kill_and_wait("web")
    eventually(lambda: stack.http.get("/v1").status_code == 200, what="the web process")
    response_id = seen[0].response.id
    rest = list(client.responses.retrieve(response_id, stream=True, starting_after=seen[-1].sequence_number))
    deltas = [event.delta for event in seen + rest if event.type == "response.output_text.delta"]
    assert rest[-1].type == "response.incomplete"
    assert "".join(deltas) == rest[-1].response.output_text == client.responses.retrieve(response_id).output_text
    chained = client.responses.create(
        model="tiny", input="And?", previous_response_id=response_id, max_output_tokens=4, truncation="auto"
    )
    assert chained.status in {"completed", "incomplete"}


def test_a_stream_left_by_its_client_and_its_web_process_is_stopped(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack(MLXPLATFORM_RESUME_GRACE_SECONDS="0.5")
    # An engine that stands still cannot reach the end before the patience of its host does.
    halted: list[int] = []

    def kill() -> None:
        halted.append(stack.kill("engine", signal.SIGSTOP))
        stack.kill_and_wait("web")

    seen = cut(stack, "POST", "/v1/chat/completions", kill, 3, json={**CHAT, "max_tokens": 1900})
    eventually(lambda: "request.left" in stack.logs("gpu"), what="the end of the host's patience")
    with contextlib.suppress(ProcessLookupError):  # its host may have replaced it
        os.kill(halted[0], signal.SIGCONT)
    eventually(lambda: stack.http.get("/stats").json()["active"] == 0, what="a free engine")
    path = f"/v1/chat/completions/{seen[0][1]['id']}"
    assert stack.http.get(path).status_code == 404


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[OwnBroker]:
    broker = OwnBroker(tmp_path / "v")
    yield broker
    broker.stop()


def test_a_broker_that_dies_in_mid_stream_ends_it_with_an_error_frame(
    make_stack: Callable[..., Stack], own_broker: OwnBroker
) -> None:
    stack = make_stack(REDIS_URL=own_broker.url)
    for path, body in (
        ("/v1/chat/completions", {**CHAT, "store": False, "max_tokens": 1900}),
        ("/v1/messages", {"model": "tiny", "messages": TURN, "max_tokens": 1900, "stream": True, "output_format": LONG}),
    ):
        seen = []
        with stack.http.stream("POST", path, json=body) as answer:
            for _, data in chunks(answer.iter_lines()):
                seen.append(data)
                if len(seen) == 10:
                    own_broker.stop()
        assert seen[-1]["error"]["message"], path
        assert "finish_reason" not in json.dumps(seen[-1])
        own_broker.start()
        eventually(lambda: stack.http.get("/health").status_code == 200, what="health after the broker came back")
    answer = stack.openai().chat.completions.create(model="tiny", messages=TURN, max_tokens=4)
    assert answer.choices[0].finish_reason
