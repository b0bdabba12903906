"""A transcript in OpenAI's forms: JSON, verbose JSON, plain text, and the two kinds of subtitles; and as a stream."""

from __future__ import annotations

import math
from typing import Any

from mlxplatform.api.running import STREAM_BEGINS, Call, waiting_comment
from mlxplatform.http.errors import openai_error
from mlxplatform.http.sse import DONE, data_frame
from mlxplatform.inference.client import Completion
from mlxplatform.inference.contract import Event, Failed, Refusal, Text, Transcribed, Usage, Waiting

CONTENT_TYPES = {"text": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}
EMPTY = Transcribed("", 0.0, [])


def usage_object(transcript: Transcribed) -> dict[str, Any]:
    return {"type": "duration", "seconds": math.ceil(transcript.duration)}


def body(answer: Completion, extra: dict[str, Any]) -> str | dict[str, Any]:
    """The answer in the form asked for: text of a plain one, an object of a JSON one."""
    transcript = answer.transcript or EMPTY
    text = answer.text.strip()
    match extra["format"]:
        case "text":
            return text + "\n"
        case "srt":
            return "".join(_cue(number, segment, ",") for number, segment in enumerate(transcript.segments, 1))
        case "vtt":
            return "WEBVTT\n\n" + "".join(_cue(None, segment, ".") for segment in transcript.segments)
        case "verbose_json":
            return _verbose(text, transcript, extra)
        case _:
            return {"text": text, "usage": usage_object(transcript)}


def _verbose(text: str, transcript: Transcribed, extra: dict[str, Any]) -> dict[str, Any]:
    wanted = extra["granularities"]
    return {
        "task": extra["task"],
        "language": transcript.language,
        "duration": transcript.duration,
        "text": text,
        **({"segments": transcript.segments} if "segment" in wanted else {}),
        **({"words": transcript.words} if "word" in wanted else {}),
        "usage": usage_object(transcript),
    }


def _cue(number: int | None, segment: dict[str, Any], point: str) -> str:
    # An arrow inside a text would be read as times, an empty line as the end of the cue.
    lines = [line.strip().replace("-->", "->") for line in segment["text"].strip().splitlines()]
    head = "" if number is None else f"{number}\n"
    times = f"{clock(segment['start'], point)} --> {clock(segment['end'], point)}"
    return f"{head}{times}\n" + "\n".join(line for line in lines if line) + "\n\n"


def clock(seconds: float, point: str) -> str:
    """``HH:MM:SS,mmm``."""
    thousandths = round(max(seconds, 0.0) * 1000)
    hours, rest = divmod(thousandths, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    return f"{hours:02d}:{minutes:02d}:{rest // 1000:02d}{point}{rest % 1000:03d}"


class TranscriptFrames:
    """Renderer of one streamed transcript: a delta per segment, then the whole."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._text: list[str] = []
        self._transcript = EMPTY

    def opening(self) -> bytes:
        return STREAM_BEGINS

    def event(self, index: int, event: Event) -> bytes:
        match event:
            case Text() if event.text:
                self._text.append(event.text)
                return data_frame({"type": "transcript.text.delta", "delta": event.text})
            case Transcribed():
                self._transcript = event
        return b""

    def heartbeat(self, waiting: Waiting | None) -> bytes:
        return waiting_comment(waiting)

    def failed(self, failed: Failed, used: Usage) -> bytes:
        return data_frame({"type": "error", "error": openai_error(Refusal.from_failed(failed))})

    def closing(self, used: Usage) -> bytes:
        done = {"type": "transcript.text.done", "text": "".join(self._text).strip(), "usage": usage_object(self._transcript)}
        return data_frame(done) + DONE
