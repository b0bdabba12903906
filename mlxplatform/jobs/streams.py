"""A job's event log as server-sent events and as NDJSON.

Stream grammar: ``retry: 1500``, then one frame per event (``id:`` its number, ``data:`` its JSON), comments while
nothing happens, and after the terminal event ``event: end``. A client that comes back with ``Last-Event-ID: n``
gets n+1 and on. A ``Last-Event-ID`` that names no event of this log (not a number, too large, older than what is
kept) is answered by ``event: reset`` with the job's present row, followed by everything there is. A page's stream ends
without ``event: end`` when the web process is replaced: the browser takes it up again in the next one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec

from mlxplatform.http import sse
from mlxplatform.jobs.feed import feed

RETRY = b"retry: 1500\n\n"
END = b"event: end\ndata: {}\n\n"


def position(raw: str | None, last_seq: int, first_seq: int) -> int | None:
    """The number after which to continue; None when ``raw`` cannot be served and the reader must start over."""
    if raw is None or raw == "":
        return 0
    if not (raw.isascii() and raw.isdigit() and len(raw) <= 18):
        return None
    number = int(raw)
    if number > last_seq or (number and number < first_seq - 1):
        return None
    return number


async def job_frames(job: dict[str, Any], after: int | None, *, returns: bool = False) -> AsyncGenerator[bytes, None]:
    """Frames of one job's stream, beginning after event ``after`` (None: a reset, then from the start). ``returns``: see
    :meth:`~mlxplatform.jobs.feed.Feed.follow`."""
    yield RETRY
    if after is None:
        yield sse.event_frame("reset", job)
        after = 0
    frames = sse.with_heartbeats(_frames(job["id"], after, returns))
    try:
        async for frame in frames:
            yield frame
    finally:
        await frames.aclose()
    if not (returns and feed().left):
        yield END


async def _frames(job_id: str, after: int, returns: bool) -> AsyncIterator[bytes]:
    events = feed().follow(job_id, after, returns=returns)
    try:
        async for page in events:
            yield b"".join(sse.numbered_frame(event["seq"], event) for event in page)
    finally:
        await events.aclose()


async def ndjson(job_id: str, last_seq: int) -> AsyncGenerator[bytes, None]:
    """The log so far, one JSON object per line, whole lines only."""
    after = 0
    while after < last_seq:
        page = await feed().page(job_id, after)
        if not page:
            return
        after = page[-1]["seq"]
        yield b"".join(msgspec.json.encode(event) + b"\n" for event in page)
