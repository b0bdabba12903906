"""Legacy completions out: ``text_completion`` objects, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlxplatform.api.openai.usage import usage_object
from mlxplatform.api.reckoning import total
from mlxplatform.api.running import STREAM_BEGINS, Call, waiting_comment
from mlxplatform.http.errors import openai_error
from mlxplatform.http.sse import DONE, data_frame
from mlxplatform.inference.client import Completion
from mlxplatform.inference.contract import (
    Event,
    Failed,
    Finished,
    Reasoning,
    Refusal,
    Text,
    TokenLogprob,
    Usage,
    Waiting,
)


def logprobs_object(entries: Sequence[TokenLogprob], offset: int) -> tuple[dict[str, Any], int]:
    """Four arrays of one length, and the text offset after them."""
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.text)
    found = {
        "tokens": [entry.text for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [
            {text: value for _, text, value in entry.top} if entry.top else {entry.text: entry.logprob} for entry in entries
        ],
        "text_offset": offsets,
    }
    return found, offset


def completion_object(call: Call, answers: Sequence[Completion]) -> dict[str, Any]:
    choices = []
    for index, answer in enumerate(answers):
        logprobs = None if call.asked.request.logprobs is None else logprobs_object(answer.logprobs, 0)[0]
        text = call.asked.extra[index] + answer.reasoning + answer.text
        choices.append({"index": index, "text": text, "logprobs": logprobs, "finish_reason": answer.finish_reason})
    return {**_envelope(call), "choices": choices, "usage": usage_object(total(answers, call.asked.n))}


def _envelope(call: Call) -> dict[str, Any]:
    return {
        "id": call.id,
        "object": "text_completion",
        "created": call.created,
        "model": call.model,
        "system_fingerprint": None,
    }


class CompletionFrames:
    """Renderer of one streamed call."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._envelope = _envelope(call)
        self._offsets = [0] * len(call.requests)

    def opening(self) -> bytes:
        echoes = (self._chunk(index, text, None) for index, text in enumerate(self._call.asked.extra) if text)
        return STREAM_BEGINS + b"".join(echoes)

    def event(self, index: int, event: Event) -> bytes:
        match event:
            case Text() | Reasoning():
                logprobs = None
                if self._call.asked.request.logprobs is not None:
                    logprobs, self._offsets[index] = logprobs_object(event.logprobs, self._offsets[index])
                return self._chunk(index, event.text, None, logprobs)
            case Finished():
                return self._chunk(index, "", event.reason)
            case _:
                return b""

    def _chunk(self, index: int, text: str, reason: str | None, logprobs: dict[str, Any] | None = None) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        usage: dict[str, Any] = {"usage": None} if self._call.asked.include_usage else {}
        return data_frame({**self._envelope, "choices": [choice], **usage})

    def heartbeat(self, waiting: Waiting | None) -> bytes:
        return waiting_comment(waiting)

    def failed(self, failed: Failed, used: Usage) -> bytes:
        return data_frame({"error": openai_error(Refusal.from_failed(failed)), "usage": usage_object(used)})

    def closing(self, used: Usage) -> bytes:
        last = b""
        if self._call.asked.include_usage:
            last = data_frame({**self._envelope, "choices": [], "usage": usage_object(used)})
        return last + DONE
