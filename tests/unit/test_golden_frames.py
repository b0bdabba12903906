"""The bytes of every protocol's stream for the same events, compared with files that were read by a person once.

After a deliberate change run this file with ``WRITE_GOLDEN=1`` in the environment, and read the difference.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlxplatform.api.anthropic.render import MessageFrames
from mlxplatform.api.ollama import render as ollama
from mlxplatform.api.ollama.parse import Shape
from mlxplatform.api.openai.chat.render import ChatFrames, facts_of
from mlxplatform.api.openai.completions.render import CompletionFrames
from mlxplatform.api.openai.responses import render as responses
from mlxplatform.api.running import Asked, Call, Renderer, drive
from mlxplatform.http.sse import comment
from mlxplatform.inference.contract import (
    Admitted,
    Event,
    Failed,
    Finished,
    InferenceRequest,
    Reasoning,
    Text,
    ToolCall,
    Usage,
    Waiting,
)

GOLDEN = Path(__file__).parent / "golden"
USED = Usage(prompt=7, completion=5, cached=2, reasoning=1)
CALL = ToolCall("call_1", "get_time", '{"zone":"UTC"}')

SCENES: dict[str, list[list[Event]]] = {
    "text": [[Admitted(7, "tiny")], [Text("Hel")], [Text("lo ✓")], [Finished("stop", USED)]],
    "reasoning": [[Admitted(7, "tiny")], [Reasoning("Hmm.")], [Text("Yes")], [Finished("length", USED)]],
    "tools": [
        [Admitted(7, "tiny")],
        [Text("Let me see. ")],
        [CALL, ToolCall("call_2", "f", "{}")],
        [Finished("tool_calls", USED)],
    ],
    "empty": [[Admitted(7, "tiny")], [Finished("stop", Usage(prompt=7))]],
    "stop_string": [[Admitted(7, "tiny")], [Text("a\n")], [Finished("stop", USED, "END")]],
    "error": [[Admitted(7, "tiny")], [Text("Hel")], [Failed("engine_unavailable", "The engine is gone.", 503, usage=USED)]],
    "heartbeats": [[Admitted(7, "tiny")], [], [Waiting(3, 12.0, "queue")], [], [Text("Hi")], [], [Finished("stop", USED)]],
}


class Script:
    """The streams of one call as a script: a list of events per read, an empty one for silence."""

    prompt_tokens = 7

    def __init__(self, steps: list[list[Event]]) -> None:
        self._steps = list(steps)
        self.finished = False

    async def read(self, timeout: float) -> list[tuple[int, Event]]:
        events = self._steps.pop(0)
        self.finished = not self._steps
        return [(0, event) for event in events]

    def stop(self, reason: str = "") -> bool:
        return False


def call(prefix: str, **more: object) -> Call:
    asked = Asked(requests=(InferenceRequest(id=f"{prefix}1", model="tiny"),), model="tiny", stream=True, **more)  # type: ignore[arg-type]
    return Call(asked, asked.requests, "tiny", 1_700_000_000, {}, "default", "")


RENDERERS: dict[str, Callable[[], tuple[Call, Renderer]]] = {
    "chat": lambda: (one := call("chatcmpl-", include_usage=True), ChatFrames(facts_of(one))),
    "completions": lambda: (one := call("cmpl-", include_usage=True, extra=["Once "]), CompletionFrames(one)),
    "anthropic": lambda: (one := call("msg_"), MessageFrames(one, 7)),
    "ollama": lambda: (one := call("ollama-", extra=Shape(chat=True)), ollama.Lines(one)),
    "ollama_generate": lambda: (one := call("ollama-", extra=Shape(chat=False)), ollama.Lines(one)),
}


@pytest.fixture(autouse=True)
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """These answers are nobody's usage."""
    monkeypatch.setattr("mlxplatform.api.reckoning.usage.add", lambda *_: None)
    monkeypatch.setattr("mlxplatform.api.reckoning.request_log.add", lambda *_: None)


async def driven(protocol: str, steps: list[list[Event]]) -> bytes:
    one, renderer = RENDERERS[protocol]()
    return b"".join([frame async for frame in drive(one, Script(steps), renderer)])  # type: ignore[arg-type]


def responded(steps: list[list[Event]]) -> bytes:
    state = responses.ResponseState(responses.facts_of(call("resp_", extra={"metadata": {}})))
    out, number = b"", 0
    for step in steps:
        out += b"" if step else comment()
        for event in step:
            number += 1
            out += b"".join(frame for _, frame in state.event(number, event))
    return out


def rendered(protocol: str, scene: str) -> bytes:
    if protocol == "responses":
        return responded(SCENES[scene])
    return asyncio.run(driven(protocol, SCENES[scene]))


def cases() -> Iterator[tuple[str, str]]:
    for protocol in [*RENDERERS, "responses"]:
        for scene in SCENES:
            yield protocol, scene


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses.time, "time", lambda: 1_700_000_001)
    monkeypatch.setattr(ollama, "now", lambda: "2023-11-14T22:13:21Z")
    monkeypatch.setattr(ollama, "elapsed", lambda since: 1_000_000)


@pytest.mark.parametrize(("protocol", "scene"), list(cases()))
def test_frames_are_the_golden_ones(protocol: str, scene: str) -> None:
    file = GOLDEN / f"{protocol}_{scene}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        file.write_bytes(rendered(protocol, scene))
    assert rendered(protocol, scene).decode() == file.read_text()
