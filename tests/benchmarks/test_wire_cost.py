"""What the web process itself spends on a streamed token: from the published frame to the bytes of the chunk.

Bars: parsing and rendering at most 60 µs of CPU a chunk at 64 streams (median of five rounds).
"""

from __future__ import annotations

import asyncio
import statistics
import time

import pytest

from mlxplatform.api.anthropic.render import MessageFrames
from mlxplatform.api.openai.chat.render import ChatFacts, ChatFrames
from mlxplatform.api.openai.responses.render import ResponseState
from mlxplatform.api.running import Asked, Call
from mlxplatform.inference.contract import Admitted, Delivery, InferenceRequest, Text, encode
from mlxplatform.inference.hub import Hub

pytestmark = pytest.mark.bench

STREAMS, STEPS, ROUNDS = 64, 100, 5
#: Microseconds of CPU per chunk.
BAR_US = 60.0


def renderers(name: str) -> list[object]:
    asked = Asked(requests=(InferenceRequest(id="msg_1", model="tiny"),), model="tiny")
    call = Call(asked, asked.requests, "tiny", 1, {}, "default", "")
    facts = {"id": "resp_1", "model": "tiny", "created": 1, "echo": {}, "one_call": False, "logprobs": False}
    make = {
        "chat": lambda: ChatFrames(ChatFacts("chatcmpl-1", "tiny", 1)),
        "anthropic": lambda: MessageFrames(call, 7),
        "responses": lambda: ResponseState(facts),
    }[name]
    return [make() for _ in range(STREAMS)]


async def one_round(name: str) -> float:
    """CPU microseconds a chunk."""
    hub = Hub()
    inboxes = [hub.open(f"r{i}", "local", "") for i in range(STREAMS)]
    rendering = renderers(name)
    hub._deliver(encode([Delivery(f"r{i}", 1, [Admitted(7, "tiny")]) for i in range(STREAMS)]))
    for inbox in inboxes:
        inbox.take()
    frames = [encode([Delivery(f"r{i}", 2 + step, [Text(" word")]) for i in range(STREAMS)]) for step in range(STEPS)]
    started = time.process_time()
    for step, frame in enumerate(frames):
        hub._deliver(frame)
        for inbox, renderer in zip(inboxes, rendering, strict=True):
            for event in inbox.take():
                renderer.event(2 + step if name == "responses" else 0, event)  # type: ignore[attr-defined]
    return (time.process_time() - started) / (STEPS * STREAMS) * 1e6


@pytest.mark.parametrize("name", ["chat", "anthropic", "responses"])
def test_parse_and_render_cost(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    rounds = [asyncio.run(one_round(name)) for _ in range(ROUNDS)]
    median = statistics.median(rounds)
    with capsys.disabled():
        print(f"\n{name}: {median:.1f} µs a chunk (of {min(rounds):.1f}..{max(rounds):.1f}), bar {BAR_US:.0f} µs")
    assert median <= BAR_US
