"""A small platform under pressure: full queues, waiting clients, clients that leave, long agent conversations."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import httpx
import pytest

from tests.api.conftest import HELLO
from tests.system.stack import Stack, eventually

pytestmark = pytest.mark.stack

CHAT = "/v1/chat/completions"
#: An answer that does not end by itself.
ENDLESS = {"model": "tiny", "messages": HELLO, "max_tokens": 1900, "logit_bias": {"0": -100, "2": -100}}
SHORT = {"model": "tiny", "messages": HELLO, "max_tokens": 2}


@pytest.fixture(scope="module")
def small(home_template: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One slot, one place to wait, quick heartbeats."""

    home = tmp_path_factory.mktemp("small") / "home"
    shutil.copytree(home_template, home)
    settings = {"MLXPLATFORM_SLOTS": "1", "MLXPLATFORM_QUEUE_LIMIT": "1", "MLXPLATFORM_HEARTBEAT_SECONDS": "0.2"}
    with Stack(home, settings) as running:
        yield running


def free(stack: Stack) -> None:
    def idle() -> bool:
        stats = stack.http.get("/stats").json()
        return bool(stats["active"] == 0 and stats["waiting"] == 0)

    eventually(idle, seconds=10, what="a free engine")


@contextmanager
def held(stack: Stack) -> Iterator[None]:
    """The engine stopped in its tracks: whatever was asked waits, for as long as the test needs."""
    assert stack.http.post(CHAT, json=SHORT).status_code == 200
    stack.kill("engine", signal.SIGSTOP)
    try:
        yield
    finally:
        stack.kill("engine", signal.SIGCONT)


def open_stream(stack: Stack, closing: ExitStack, path: str = CHAT, **more: Any) -> httpx.Response:
    client = closing.enter_context(httpx.Client(base_url=stack.base_url, timeout=60))
    return closing.enter_context(client.stream("POST", path, json={**ENDLESS, "stream": True, **more}))


def test_a_full_queue_is_429_and_waiting_is_told(small: Stack) -> None:
    free(small)
    with held(small), ExitStack() as closing:
        # The iterators are kept: httpx hangs up when one is dropped.
        running = open_stream(small, closing).iter_lines()
        assert next(running).startswith(":"), "a comment at once"
        beats = (line for line in open_stream(small, closing).iter_lines() if line.startswith(":"))
        assert [next(beats), next(beats), next(beats)], "and others while waiting"
        for stream in (False, True):
            refused = small.http.post(CHAT, json={**SHORT, "stream": stream})
            assert refused.status_code == 429, refused.text
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["code"] == "queue_full"
        other = small.http.post("/v1/messages", json={"model": "tiny", "max_tokens": 2, "messages": HELLO})
        assert (other.status_code, other.json()["error"]["type"]) == (429, "rate_limit_error")
    free(small)
    assert small.http.post(CHAT, json=SHORT).status_code == 200


def test_anthropic_waits_with_pings(small: Stack) -> None:
    free(small)
    with held(small), ExitStack() as closing:
        waiting = open_stream(small, closing, "/v1/messages")
        pings = (line for line in waiting.iter_lines() if line == "event: ping")
        assert [next(pings), next(pings), next(pings)]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["running", "waiting"])
def test_leaving_frees_the_place_in_every_phase(small: Stack, stream: bool, phase: str) -> None:
    free(small)
    with held(small) if phase == "waiting" else nullcontext(), httpx.Client(base_url=small.base_url, timeout=1.0) as leaver:
        if stream:
            with leaver.stream("POST", CHAT, json={**ENDLESS, "stream": True}) as response:
                next(response.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                leaver.post(CHAT, json=ENDLESS)
    free(small)
    assert small.http.post(CHAT, json=SHORT).status_code == 200


def test_twenty_turns_with_tools_in_every_protocol(stack: Stack) -> None:
    """What an agent sends: the whole history each time, growing by a call, its result and a question."""
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    chat: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    messages: list[dict[str, Any]] = []
    items: list[dict[str, Any]] = []
    openai, anthropic = stack.openai(), stack.anthropic()
    for turn in range(20):
        chat += [
            {"role": "user", "content": f"q{turn}"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"c{turn}", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": f"c{turn}", "content": "ok"},
        ]
        messages += [
            {"role": "user", "content": f"q{turn}"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": f"t{turn}", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"t{turn}", "content": "ok"}]},
        ]
        items += [
            {"role": "user", "content": f"q{turn}"},
            {"type": "function_call", "call_id": f"c{turn}", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"c{turn}", "output": "ok"},
        ]
        if turn % 5 == 4:
            tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
            answer = openai.chat.completions.create(model="tiny", messages=chat, tools=[tool], tool_choice="none", max_tokens=2)
            assert answer.usage.prompt_tokens > 0
            message = anthropic.messages.create(
                model="tiny",
                max_tokens=2,
                system="Be brief.",
                messages=messages,
                tools=[{"name": "f", "input_schema": schema}],
                tool_choice={"type": "none"},
            )
            assert message.usage.input_tokens > 0
            response = openai.responses.create(
                model="tiny",
                input=items,
                instructions="Be brief.",
                tools=[{"type": "function", "name": "f", "parameters": schema}],
                tool_choice="none",
                max_output_tokens=2,
            )
            assert response.usage.input_tokens > 0
        messages.append({"role": "assistant", "content": "fine"})
        chat.append({"role": "assistant", "content": "fine"})
        items.append({"role": "assistant", "content": "fine"})


def test_many_clients_of_several_protocols_at_once(stack: Stack) -> None:
    answers: list[int] = []

    def ask(path: str, body: dict[str, Any]) -> None:
        answers.append(httpx.post(stack.base_url + path, json=body, timeout=60).status_code)

    calls = [
        (CHAT, SHORT),
        ("/v1/messages", SHORT),
        ("/v1/responses", {"model": "tiny", "input": "x", "max_output_tokens": 2}),
    ] * 8
    threads = [threading.Thread(target=ask, args=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * len(calls)
