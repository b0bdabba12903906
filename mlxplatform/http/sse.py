"""Server-sent events: frames, heartbeats, and the response that carries them.

One writer for every stream of the platform. A frame is bytes; a source is an async iterator of frames. Headers
tell proxies not to buffer. A first comment goes out at once, so that a client (or a proxy) with a byte timeout sees
life before the first token, and a comment at most every ``HEARTBEAT_SECONDS`` after that; none carries an ``id:``.
Knows no protocol: what a heartbeat looks like and what an error frame looks like is passed in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import msgspec
import structlog
from django.conf import settings
from django.http import StreamingHttpResponse

log = structlog.get_logger(__name__)

_encoder = msgspec.json.Encoder()

#: ``no-transform`` keeps compressing proxies from collecting frames.
HEADERS = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}

DONE = b"data: [DONE]\n\n"


def data_frame(value: Any) -> bytes:
    """An unnamed event with a JSON payload. JSON escapes line ends, so one ``data:`` line is enough."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


def event_frame(event: str, value: Any, seq: int | None = None) -> bytes:
    """A named event with a JSON payload and, when numbered, its ``id:``."""
    number = b"" if seq is None else b"id: %d\n" % seq
    return number + b"event: " + event.encode() + b"\ndata: " + _encoder.encode(value) + b"\n\n"


def numbered_frame(seq: int, value: Any) -> bytes:
    return b"id: %d\n" % seq + data_frame(value)


def comment(text: str = "keep-alive") -> bytes:
    """A line clients ignore."""
    return b": " + text.replace("\n", " ").replace("\r", " ").encode() + b"\n\n"


def heartbeat_seconds() -> float:
    return settings.ENV.heartbeat_seconds


async def with_heartbeats(source: AsyncIterator[bytes], beat: Callable[[], bytes] = comment) -> AsyncGenerator[bytes, None]:
    """``source`` with a beat whenever it stays silent for the heartbeat interval; closing this closes the source."""
    interval = heartbeat_seconds()
    step: asyncio.Task[bytes] | None = None
    try:
        while True:
            step = asyncio.ensure_future(anext(source))
            while not step.done():
                done, _ = await asyncio.wait({step}, timeout=interval)
                if not done:
                    yield beat()
            try:
                yield step.result()
            except StopAsyncIteration:
                return
    finally:
        if step is not None and not step.done():
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()


class EventStreamResponse(StreamingHttpResponse):
    """An async generator of frames as an answer that no proxy may hold back."""

    def __init__(self, frames: AsyncGenerator[bytes, None], headers: dict[str, str] | None = None, status: int = 200) -> None:
        everything = {**HEADERS, **(headers or {})}
        super().__init__(frames, status=status, content_type="text/event-stream; charset=utf-8", headers=everything)

    _iterator: AsyncIterator[bytes]

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The frames as they are: the stock way through two more generators costs more than rendering one."""
        return self._iterator
