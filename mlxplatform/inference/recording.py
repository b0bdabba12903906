"""Streams that outlive their client: a recording owns the stream, viewers come and go.

A stored streamed request is submitted so that the gpu process also writes its numbered events to a capped Redis
stream. In the web process that took it, a :class:`Recording` reads the live events, ends the SQL row when the answer
ends (before any viewer sees the end), and keeps a mark in Redis while somebody watches. The mark outlives the last
viewer by the grace period; the gpu process stops what has no mark, unless it runs in the background. Viewers elsewhere,
or after a restart, follow the Redis log with :func:`follow_log`; after the log has expired they get the events kept in
SQL. Either way an event has the number the gpu side gave it, so a reader that was cut anywhere joins to the same text.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

import structlog
from django.conf import settings
from django.utils import timezone

from mlxplatform.broker import queues
from mlxplatform.broker.connections import BROKER_ERRORS, async_client
from mlxplatform.inference.client import Stream
from mlxplatform.inference.contract import Event, Failed, Finished, decode_events
from mlxplatform.inference.hub import LOST_BROKER, LOST_ENGINE

log = structlog.get_logger(__name__)

Numbered = tuple[int, Event]
#: What ends the SQL row; gets every event of the answer.
OnEnd = Callable[[list[Numbered]], Awaitable[None]]

#: Milliseconds one blocking read of the log waits.
LOG_BLOCK_MS = 1000
#: Entries of a log read at once.
LOG_COUNT = 500
#: Seconds between two renewals of the mark of a stream that is watched.
MARK_SECONDS = 2.0
#: Age in seconds from which an unfinished answer without a sign of life counts as lost.
LOST_AFTER = 60.0
#: Seconds a log may be missing before its request counts as lost: it appears with the first event.
LOG_PATIENCE = 20.0


async def mark(request_id: str) -> None:
    """Say that somebody watches a stored request, or may come back for it within the grace period."""
    kept = settings.ENV.resume_grace_seconds + 2 * MARK_SECONDS
    await async_client().set(queues.viewer_key(request_id), 1, px=int(kept * 1000))


class Recording:
    """One stored stream of this process. Use :func:`record`."""

    def __init__(self, stream: Stream, *, background: bool, on_end: OnEnd) -> None:
        self.id = stream.id
        self.events: list[Numbered] = []
        self.ended = False
        self._stream = stream
        self._background = background
        self._on_end = on_end
        self._news = asyncio.Condition()
        self._viewers = 0
        self._marked_at = 0.0
        # A context of its own: it outlives the request that began it.
        self._task = asyncio.create_task(self._run(), context=contextvars.Context())

    async def follow(self, timeout: float) -> AsyncGenerator[list[Numbered], None]:
        """Batches of events from the first on; an empty one for each ``timeout`` of silence. Ends at the end."""
        self._viewers += 1
        position = 0
        try:
            while True:
                async with self._news:
                    if position == len(self.events) and not self.ended:
                        try:
                            await asyncio.wait_for(self._news.wait(), timeout)
                        except TimeoutError:
                            pass
                    batch = self.events[position:]
                    position, ended = len(self.events), self.ended
                yield batch
                if ended:
                    return
        finally:
            self._viewers -= 1

    def cancel(self) -> None:
        self._stream.stop("cancelled")
        self._task.cancel()

    async def _run(self) -> None:
        try:
            while not self.ended:
                await self._renew_mark()
                events = await self._stream.read(1.0, merged=False)
                if events:
                    first = self._stream.seq - len(events) + 1
                    await self._take([(first + offset, event) for offset, event in enumerate(events)])
        finally:
            _recordings.pop(self.id, None)
            self._stream.stop("recording_ended")

    async def _renew_mark(self) -> None:
        now = time.monotonic()
        if self._background or not self._viewers or now - self._marked_at < MARK_SECONDS:
            return
        self._marked_at = now
        try:
            await mark(self.id)
        except BROKER_ERRORS as error:
            log.warning("stream not marked as watched", request_id=self.id, error=str(error))

    async def _take(self, numbered: list[Numbered]) -> None:
        last = numbered[-1][1]
        ended = isinstance(last, (Finished, Failed))
        if ended:
            try:
                await self._on_end([*self.events, *numbered])
            except Exception:
                log.exception("answer not stored", request_id=self.id)
        async with self._news:
            self.events += numbered
            self.ended = ended
            self._news.notify_all()


_recordings: dict[str, Recording] = {}


def record(stream: Stream, *, background: bool, on_end: OnEnd) -> Recording:
    recording = _recordings[stream.id] = Recording(stream, background=background, on_end=on_end)
    return recording


def recording_of(request_id: str) -> Recording | None:
    return _recordings.get(request_id)


async def read_log(request_id: str) -> list[Numbered]:
    """Every event in the log now."""
    entries: Any = await async_client().xrange(queues.events_key(request_id))
    return [item for entry in entries for item in _numbered(*entry)]


async def is_lost(request_id: str) -> bool:
    """Whether no process works on an unfinished stored request any more, nor will. Looks twice: a broker that lost its data
    has the signs of life back after one look of the gpu processes."""
    for look in range(2):
        if look:
            await asyncio.sleep(queues.STORED_LOOK * 1.5)
        if await async_client().exists(queues.alive_key(request_id), queues.request_key(request_id)):
            return False
    return True


async def ending_of(request_id: str, created_at: datetime) -> list[Numbered] | None:
    """All events of an unfinished stored answer that nobody here records, when it has ended or was lost; else None."""
    events = await read_log(request_id)
    if events and isinstance(events[-1][1], (Finished, Failed)):
        return events
    if (timezone.now() - created_at).total_seconds() < LOST_AFTER or not await is_lost(request_id):
        return None
    events = await read_log(request_id)  # it may have ended between the two
    if events and isinstance(events[-1][1], (Finished, Failed)):
        return events
    number = events[-1][0] if events else 0
    return [*events, (number + 1, LOST_ENGINE)]


async def follow_log(request_id: str, timeout: float) -> AsyncGenerator[list[Numbered], None]:
    """As :meth:`Recording.follow`, from Redis: for other processes, and after a restart of this one."""
    client = async_client()
    position = b"0-0"
    last = 0
    silent_since = heard_at = started = time.monotonic()
    while True:
        try:
            await mark(request_id)
            answer = await client.xread({queues.events_key(request_id): position}, count=LOG_COUNT, block=LOG_BLOCK_MS)
        except BROKER_ERRORS:
            yield [(last + 1, LOST_BROKER)]
            return
        batch: list[Numbered] = []
        for entry_id, fields in _entries(answer):
            position = entry_id
            batch += _numbered(entry_id, fields)
        if batch:
            last = batch[-1][0]
            silent_since = heard_at = time.monotonic()
            yield batch
            if isinstance(batch[-1][1], (Finished, Failed)):
                return
        elif not last and time.monotonic() - started > LOG_PATIENCE:
            yield [(last + 1, Failed("response_expired", "The events of this answer are no longer kept.", 404))]
            return
        elif time.monotonic() - silent_since >= timeout:
            silent_since = time.monotonic()
            yield []
            if time.monotonic() - heard_at > LOST_AFTER and await is_lost(request_id):
                yield [(last + 1, LOST_ENGINE)]
                return


def _entries(answer: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Entries of the one stream an XREAD asked for: a list of pairs in RESP2, a mapping in RESP3."""
    if not answer:
        return []
    entries: Any = next(iter(answer.values())) if isinstance(answer, dict) else answer[0][1]
    return entries[0] if entries and isinstance(entries[0], list) else entries


def _numbered(entry_id: bytes, fields: dict[bytes, bytes]) -> list[Numbered]:
    first = int(entry_id.partition(b"-")[0])
    return [(first + offset, event) for offset, event in enumerate(decode_events(fields[b"e"]))]


async def replay(events: Sequence[Numbered]) -> AsyncGenerator[list[Numbered], None]:
    """Kept events as one batch."""
    yield list(events)
