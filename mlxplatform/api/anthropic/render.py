"""Messages out: the message object and the event grammar of its stream.

``message_start``, then per block ``content_block_start``, deltas, ``content_block_stop``, then one ``message_delta``
with the stop reason and usage, then ``message_stop``. Thinking is closed by an empty signature. An answer without
anything has one empty text block.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mlxplatform.api.running import STREAM_BEGINS, Call
from mlxplatform.http.errors import error_body
from mlxplatform.http.sse import event_frame
from mlxplatform.inference.client import Completion
from mlxplatform.inference.contract import (
    Event,
    Failed,
    Finished,
    FinishReason,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    Usage,
    Waiting,
)

_json = msgspec.json.Encoder().encode
_DELTA_HEAD = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":'


def stop_reason(reason: FinishReason, stop_sequence: str | None) -> str:
    if reason == "stop" and stop_sequence is not None:
        return "stop_sequence"
    return {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[reason]


def usage_object(used: Usage) -> dict[str, Any]:
    """``input_tokens`` is the whole prompt, so that the same request always reports the same number; those of them
    that came from the prefix cache are told beside it."""
    counts = {"input_tokens": used.prompt, "output_tokens": used.completion}
    if used.cached:
        counts["cache_read_input_tokens"] = used.cached
    return counts


def tool_id(call_id: str) -> str:
    return call_id if call_id.startswith("toolu_") else f"toolu_{call_id.removeprefix('call_')}"


def tool_input(arguments: str) -> Any:
    """The parsed arguments; text that is no JSON object is handed over as it is."""
    try:
        parsed = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return {"_raw": arguments}
    return parsed if isinstance(parsed, dict) else {"_raw": arguments}


def message_object(call: Call, answer: Completion) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if answer.reasoning:
        content.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    calls = answer.tool_calls[:1] if call.asked.one_call else answer.tool_calls
    if answer.text or not calls:
        content.append({"type": "text", "text": answer.text})
    content += [
        {"type": "tool_use", "id": tool_id(item.id), "name": item.name, "input": tool_input(item.arguments)} for item in calls
    ]
    return {
        **_head(call),
        "content": content,
        "stop_reason": stop_reason(answer.finish_reason, answer.stop_sequence),
        "stop_sequence": answer.stop_sequence if answer.finish_reason == "stop" else None,
        "usage": usage_object(answer.usage),
    }


def _head(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "message", "role": "assistant", "model": call.model}


class MessageFrames:
    """Renderer of one streamed message."""

    def __init__(self, call: Call, prompt_tokens: int) -> None:
        self._call = call
        self._prompt_tokens = prompt_tokens
        self._block = -1
        self._open = ""
        self._calls = 0
        self._end: Finished | None = None

    def opening(self) -> bytes:
        message = {
            **_head(self._call),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": self._prompt_tokens, "output_tokens": 0},
        }
        return STREAM_BEGINS + _frame("message_start", message=message) + self.heartbeat(None)

    def event(self, index: int, event: Event) -> bytes:
        match event:
            case Text():
                if not event.text:
                    return b""
                return self._ensure("text") + self._delta(b'{"type":"text_delta","text":' + _json(event.text) + b"}")
            case Reasoning():
                if not event.text:
                    return b""
                return self._ensure("thinking") + self._delta(b'{"type":"thinking_delta","thinking":' + _json(event.text) + b"}")
            case ToolCall():
                return self._tool_use(event)
            case Finished():
                self._end = event
                return b""
            case _:
                return b""

    def _ensure(self, kind: str) -> bytes:
        if self._open == kind:
            return b""
        empty = {"type": "text", "text": ""} if kind == "text" else {"type": "thinking", "thinking": "", "signature": ""}
        return self._close() + self._start(kind, empty)

    def _start(self, kind: str, block: dict[str, Any]) -> bytes:
        self._block += 1
        self._open = kind
        return _frame("content_block_start", index=self._block, content_block=block)

    def _delta(self, delta: bytes) -> bytes:
        return _DELTA_HEAD + str(self._block).encode() + b',"delta":' + delta + b"}\n\n"

    def _close(self) -> bytes:
        if not self._open:
            return b""
        signature = self._delta(b'{"type":"signature_delta","signature":""}') if self._open == "thinking" else b""
        self._open = ""
        return signature + _frame("content_block_stop", index=self._block)

    def _tool_use(self, call: ToolCall) -> bytes:
        if self._calls and self._call.asked.one_call:
            return b""
        self._calls += 1
        block = {"type": "tool_use", "id": tool_id(call.id), "name": call.name, "input": {}}
        arguments = _json(_json(tool_input(call.arguments)).decode())
        opened = self._close() + self._start("tool_use", block)
        return opened + self._delta(b'{"type":"input_json_delta","partial_json":' + arguments + b"}") + self._close()

    def heartbeat(self, waiting: Waiting | None) -> bytes:
        return _frame("ping")

    def failed(self, failed: Failed, used: Usage) -> bytes:
        return event_frame("error", {**error_body("anthropic", Refusal.from_failed(failed)), "usage": usage_object(used)})

    def closing(self, used: Usage) -> bytes:
        frames = self._close()
        if self._block < 0:
            frames += self._ensure("text") + self._close()
        end = self._end or Finished("stop", used)
        delta = {
            "stop_reason": stop_reason(end.reason, end.stop_sequence),
            "stop_sequence": end.stop_sequence if end.reason == "stop" else None,
        }
        return frames + _frame("message_delta", delta=delta, usage=usage_object(used)) + _frame("message_stop")


def _frame(event: str, **fields: Any) -> bytes:
    return event_frame(event, {"type": event, **fields})
