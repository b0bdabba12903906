"""Responses out: the response object, and the event chain of its stream as a pure function of numbered events.

The wire number of an event follows from the neutral event's number alone (16 wire numbers to a neutral event; a text
delta has the last of them), so that two renderings of one answer, merged differently or made by different processes,
agree: whoever resumes after number N gets exactly what N's reader had not seen. Numbers rise with gaps.
Item ids follow from the response id, for the same reason.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mlxplatform.api.openai.usage import logprob_entry
from mlxplatform.api.running import Call
from mlxplatform.http.sse import event_frame
from mlxplatform.inference.contract import (
    Admitted,
    Event,
    Failed,
    Finished,
    Reasoning,
    Text,
    TokenLogprob,
    ToolCall,
    Usage,
)

#: Wire numbers to one neutral event; the most frames one makes is nine.
STRIDE = 16

_json = msgspec.json.Encoder().encode


def usage_object(used: Usage) -> dict[str, Any]:
    return {
        "input_tokens": used.prompt,
        "input_tokens_details": {"cached_tokens": used.cached, "cache_write_tokens": 0},
        "output_tokens": used.completion,
        "output_tokens_details": {"reasoning_tokens": used.reasoning},
        "total_tokens": used.prompt + used.completion,
    }


def delta_number(number: int) -> int:
    """Wire number of a text delta: the last of its neutral event's."""
    return number * STRIDE - 1


def facts_of(call: Call) -> dict[str, Any]:
    """Everything besides its events that a response's rendering depends on, as JSON values."""
    return {
        "id": call.id,
        "model": call.model,
        "created": call.created,
        "echo": call.asked.extra,
        "one_call": call.asked.one_call,
        "logprobs": call.asked.request.logprobs is not None,
        # For its reckoning, should another process have to end it.
        "key_id": call.key_id,
        "path": call.path,
        "began": call.began,
    }


@dataclass
class _Open:
    """The item being written."""

    kind: str
    id: str
    index: int
    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)


class ResponseState:
    """Builds a response from its events. :meth:`event` also gives the frames, for those who stream it."""

    def __init__(self, facts: dict[str, Any]) -> None:
        """``facts`` is what :func:`facts_of` said when the request was admitted; it is stored with the request."""
        self.id: str = facts["id"]
        self.status = "in_progress"
        self.output: list[dict[str, Any]] = []
        self.usage: Usage | None = None
        self.error: dict[str, Any] | None = None
        self._model: str = facts["model"]
        self._created: int = facts["created"]
        self._echo: dict[str, Any] = facts["echo"]
        self._one_call: bool = facts["one_call"]
        self._logprobs: bool = facts["logprobs"]
        self._open: _Open | None = None
        self._completed_at: int | None = None
        self._calls = 0

    def object(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": self._completed_at if self.status == "completed" else None,
            "status": self.status,
            "error": self.error,
            "incomplete_details": {"reason": "max_output_tokens"} if self.status == "incomplete" else None,
            "model": self._model,
            "output": self.output,
            "usage": None if self.usage is None else usage_object(self.usage),
            **self._echo,
        }

    def continues(self, event: Event) -> bool:
        """Whether a text would only lengthen the open item, so that it may be merged with its neighbours."""
        kind = {Text: "message", Reasoning: "reasoning"}.get(type(event))
        return kind is not None and self._open is not None and self._open.kind == kind

    def event(self, number: int, event: Event) -> list[tuple[int, bytes]]:
        """Wire frames of one event with their numbers."""
        frames: list[dict[str, Any]] = []
        base = (number - 1) * STRIDE
        match event:
            case Admitted():
                frames += [self._lifecycle("response.created"), self._lifecycle("response.in_progress")]
            case Text() | Reasoning():
                if not event.text and not event.logprobs:
                    return []
                self._ensure("message" if isinstance(event, Text) else "reasoning", frames)
                return [*self._numbered(base, frames), self._delta(delta_number(number), event)]
            case ToolCall():
                if not (self._calls and self._one_call):
                    self._tool_call(event, frames)
            case Finished():
                self._finish(event, frames)
            case Failed():
                self._fail(event, frames)
        return self._numbered(base, frames)

    def _numbered(self, base: int, frames: Sequence[dict[str, Any]]) -> list[tuple[int, bytes]]:
        numbered = []
        for offset, frame in enumerate(frames):
            body = {"type": frame["type"], "sequence_number": base + offset, **frame}
            numbered.append((base + offset, event_frame(frame["type"], body)))
        return numbered

    def _lifecycle(self, kind: str) -> dict[str, Any]:
        return {"type": kind, "response": {**self.object(), "output": list(self.output)}}

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self.id.removeprefix('resp_')}{len(self.output):02d}"

    def _ensure(self, kind: str, frames: list[dict[str, Any]]) -> None:
        if self._open is not None and self._open.kind == kind:
            return
        self._close(frames)
        item = _Open(kind, self._item_id("msg" if kind == "message" else "rs"), len(self.output))
        self._open = item
        where = {"output_index": item.index}
        if kind == "message":
            empty = {"id": item.id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
            frames.append({"type": "response.output_item.added", **where, "item": empty})
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            frames.append({"type": "response.content_part.added", **where, "item_id": item.id, "content_index": 0, "part": part})
        else:
            empty = {"id": item.id, "type": "reasoning", "status": "in_progress", "summary": []}
            frames.append({"type": "response.output_item.added", **where, "item": empty})
            part = {"type": "summary_text", "text": ""}
            frames.append(
                {"type": "response.reasoning_summary_part.added", **where, "item_id": item.id, "summary_index": 0, "part": part}
            )

    def _delta(self, number: int, event: Text | Reasoning) -> tuple[int, bytes]:
        item = self._open
        assert item is not None
        item.text.append(event.text)
        item.logprobs += event.logprobs
        if item.kind == "message":
            kind, index = b"response.output_text.delta", b"content_index"
            extra = b',"logprobs":' + _json([logprob_entry(entry) for entry in event.logprobs] if self._logprobs else [])
        else:
            kind, index, extra = b"response.reasoning_summary_text.delta", b"summary_index", b""
        frame = (
            b"event: %b\ndata: {" % kind
            + b'"type":"%b","sequence_number":%d,"item_id":"%b","output_index":%d,"%b":0,"delta":'
            % (kind, number, item.id.encode(), item.index, index)
            + _json(event.text)
            + extra
            + b"}\n\n"
        )
        return number, frame

    def _close(self, frames: list[dict[str, Any]], status: str = "completed") -> None:
        item, self._open = self._open, None
        if item is None:
            return
        text = "".join(item.text)
        where = {"item_id": item.id, "output_index": item.index}
        if item.kind == "message":
            logprobs = [logprob_entry(entry) for entry in item.logprobs] if self._logprobs else []
            part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
            done = {"id": item.id, "type": "message", "status": status, "role": "assistant", "content": [part]}
            frames.append({"type": "response.output_text.done", **where, "content_index": 0, "text": text, "logprobs": logprobs})
            frames.append({"type": "response.content_part.done", **where, "content_index": 0, "part": part})
        else:
            part = {"type": "summary_text", "text": text}
            done = {"id": item.id, "type": "reasoning", "status": status, "summary": [part]}
            frames.append({"type": "response.reasoning_summary_text.done", **where, "summary_index": 0, "text": text})
            frames.append({"type": "response.reasoning_summary_part.done", **where, "summary_index": 0, "part": part})
        self.output.append(done)
        frames.append({"type": "response.output_item.done", "output_index": item.index, "item": done})

    def _tool_call(self, call: ToolCall, frames: list[dict[str, Any]]) -> None:
        self._close(frames)
        self._calls += 1
        index, item_id = len(self.output), self._item_id("fc")
        item = {"id": item_id, "type": "function_call", "call_id": call.id, "name": call.name}
        where = {"item_id": item_id, "output_index": index}
        done = {**item, "arguments": call.arguments, "status": "completed"}
        frames += [
            {
                "type": "response.output_item.added",
                "output_index": index,
                "item": {**item, "arguments": "", "status": "in_progress"},
            },
            {"type": "response.function_call_arguments.delta", **where, "delta": call.arguments},
            {"type": "response.function_call_arguments.done", **where, "name": call.name, "arguments": call.arguments},
            {"type": "response.output_item.done", "output_index": index, "item": done},
        ]
        self.output.append(done)

    def _finish(self, event: Finished, frames: list[dict[str, Any]]) -> None:
        incomplete = event.reason == "length"
        self._close(frames, "incomplete" if incomplete else "completed")
        self.usage = event.usage
        self.status = "incomplete" if incomplete else "completed"
        self._completed_at = int(time.time())
        frames.append(self._lifecycle(f"response.{self.status}"))

    def _fail(self, event: Failed, frames: list[dict[str, Any]]) -> None:
        self._close(frames, "incomplete")
        self.usage = event.usage
        cancelled = event.code in {"request_cancelled", "cancelled"}
        self.status = "cancelled" if cancelled else "failed"
        if not cancelled:
            code = "rate_limit_exceeded" if event.status == 429 else "server_error"
            self.error = {"code": code, "message": event.message, "type": event.code, "param": event.param}
        frames.append(self._lifecycle("response.failed"))
