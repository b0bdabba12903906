"""Ollama's answers: one JSON object, or one per line. This protocol has no heartbeat; its clients wait by connection."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import msgspec

from mlxplatform.api.anthropic.render import tool_input
from mlxplatform.api.running import Call
from mlxplatform.inference.client import Completion
from mlxplatform.inference.contract import Event, Failed, Finished, Reasoning, Text, ToolCall, Usage, Waiting

_json = msgspec.json.Encoder().encode


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def elapsed(since: int) -> int:
    """Nanoseconds since a moment of the monotonic clock."""
    return time.monotonic_ns() - since


def call_object(call: ToolCall) -> dict[str, Any]:
    return {"function": {"name": call.name, "arguments": tool_input(call.arguments)}}


class Lines:
    """Renderer of one call, whole or streamed."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._started = time.monotonic_ns()
        self._end: Finished | None = None

    def opening(self) -> bytes:
        return b""

    def event(self, index: int, event: Event) -> bytes:
        match event:
            case Text():
                return self._line(content=event.text) if event.text else b""
            case Reasoning():
                return self._line(thinking=event.text) if event.text else b""
            case ToolCall():
                return self._line(calls=[call_object(event)])
            case Finished():
                self._end = event
        return b""

    def heartbeat(self, waiting: Waiting | None) -> bytes:
        return b""

    def failed(self, failed: Failed, used: Usage) -> bytes:
        return _json({"error": failed.message}) + b"\n"

    def closing(self, used: Usage) -> bytes:
        reason = "length" if self._end is not None and self._end.reason == "length" else "stop"
        return _json({**self.part("", "", []), **self._summary(reason, used)}) + b"\n"

    def whole(self, answer: Completion) -> dict[str, Any]:
        part = self.part(answer.text, answer.reasoning, [call_object(call) for call in answer.tool_calls])
        return {**part, **self._summary("length" if answer.finish_reason == "length" else "stop", answer.usage)}

    def _line(self, content: str = "", thinking: str = "", calls: list[dict[str, Any]] | None = None) -> bytes:
        return _json({**self.part(content, thinking, calls or []), "done": False}) + b"\n"

    def part(self, content: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        extra: dict[str, Any] = {"thinking": thinking} if thinking else {}
        head = {"model": self._call.model, "created_at": now()}
        if not self._call.asked.extra.chat:
            return {**head, "response": content, **extra}
        if calls:
            extra["tool_calls"] = calls
        return {**head, "message": {"role": "assistant", "content": content, **extra}}

    def _summary(self, reason: str, used: Usage) -> dict[str, Any]:
        """Durations in ns; prefill and decode are not told apart here, so the whole is the decode's."""
        took = elapsed(self._started)
        return {
            "done": True,
            "done_reason": reason,
            "total_duration": took,
            "load_duration": 0,
            "prompt_eval_count": used.prompt,
            "prompt_eval_duration": 0,
            "eval_count": used.completion,
            "eval_duration": took,
        }
