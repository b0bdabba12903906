"""Following jobs' event logs from async code: one follower per process, however many readers a job has.

Truth is read from SQL by number. The pub/sub channel only says "look now"; when it is silent (Redis down, a lost
message) a slow poll looks anyway. Readers of one job share its newest events in memory, so that 200 readers cost
one query per batch of events instead of 200.
"""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import structlog
from asgiref.sync import sync_to_async

from mlxplatform.broker import queues
from mlxplatform.broker.connections import BROKER_ERRORS, async_client
from mlxplatform.jobs.models import Job, JobEvent
from mlxplatform.jobs.states import TERMINAL
from mlxplatform.jobs.wire import event_json

log = structlog.get_logger(__name__)

#: Seconds between looks when nobody announces anything.
POLL_SECONDS = 1.0
#: Events read from SQL at once.
PAGE = 500


@dataclass
class _Watched:
    """A job with at least one reader here."""

    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    readers: int = 0
    last_seq: int = 0
    ended: bool = False
    #: The newest page, contiguous, for readers that are nearly up to date.
    recent: list[dict[str, Any]] = field(default_factory=list)
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


class Feed:
    """Use :func:`feed`. Lives as long as its event loop has readers."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._touched = asyncio.Event()
        self._hinted: set[str] = set()
        #: Whether this process leaves, and readers that can come back elsewhere were sent away.
        self.left = False

    async def leave(self) -> None:
        """End the following of those who can go on elsewhere."""
        self.left = True
        for watched in list(self._watched.values()):
            async with watched.changed:
                watched.changed.notify_all()

    async def follow(self, job_id: str, after: int, *, returns: bool = False) -> AsyncGenerator[list[dict[str, Any]], None]:
        """Yield lists of events numbered above ``after``, in order without gaps, until the job has ended.

        An ended job yields its history and stops. The caller has checked that the job exists. A reader that ``returns``
        (it comes back by itself, and goes on where it was) is not kept when this process leaves.
        """
        watched = self._watched.setdefault(job_id, _Watched())
        watched.readers += 1
        self._start()
        try:
            await self._look([job_id])
            while True:
                ended, newest = watched.ended, watched.last_seq
                while after < newest:
                    page = await self._page(job_id, watched, after)
                    if not page:
                        break
                    after = page[-1]["seq"]
                    yield page
                if ended or (returns and self.left):
                    return
                async with watched.changed:
                    while watched.last_seq <= after and not watched.ended and not (returns and self.left):
                        await watched.changed.wait()
        finally:
            watched.readers -= 1
            if not watched.readers:
                self._watched.pop(job_id, None)
                if not self._watched:
                    self._stop()

    async def page(self, job_id: str, after: int) -> list[dict[str, Any]]:
        """Up to a page of events above ``after``, without following."""
        return await sync_to_async(_read, thread_sensitive=False)(job_id, after)

    async def _page(self, job_id: str, watched: _Watched, after: int) -> list[dict[str, Any]]:
        async with watched.reading:
            recent = watched.recent
            if recent and recent[0]["seq"] <= after + 1 <= recent[-1]["seq"]:
                return recent[after + 1 - recent[0]["seq"] :]
            page = await sync_to_async(_read, thread_sensitive=False)(job_id, after)
            if page and page[-1]["seq"] >= watched.last_seq - PAGE and _is_contiguous(page):
                watched.recent = page
            return page

    async def _look(self, job_ids: list[str]) -> None:
        rows = await sync_to_async(_heads, thread_sensitive=False)(job_ids)
        for job_id in job_ids:
            watched = self._watched.get(job_id)
            if watched is None:
                continue
            # A deleted job ends its streams too.
            last_seq, state = rows.get(job_id, (watched.last_seq, "done"))
            ended = state in TERMINAL
            if (last_seq, ended) != (watched.last_seq, watched.ended):
                watched.last_seq, watched.ended = last_seq, ended
                async with watched.changed:
                    watched.changed.notify_all()

    def _start(self) -> None:
        if not self._tasks:
            # A context of their own: that of the request which happened to come first carries a thread that ends with it.
            works = (self._poll, self._listen)
            self._tasks = [asyncio.create_task(work(), context=contextvars.Context()) for work in works]

    def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    async def _poll(self) -> None:
        while True:
            try:
                await asyncio.wait_for(self._touched.wait(), POLL_SECONDS)
                hinted, self._hinted = list(self._hinted), set()
                self._touched.clear()
            except TimeoutError:
                hinted = list(self._watched)
            try:
                await self._look(hinted)
            except Exception as error:
                # Whatever the database's trouble, readers wait for its end rather than losing their place.
                log.warning("job_feed_blind", error=type(error).__name__)
                await asyncio.sleep(POLL_SECONDS)

    async def _listen(self) -> None:
        while True:
            try:
                async with async_client().pubsub() as hints:
                    await hints.subscribe(queues.JOBS_CHANNEL)
                    async for message in hints.listen():
                        if message["type"] == "message":
                            job_id = message["data"].decode()
                            if job_id in self._watched:
                                self._hinted.add(job_id)
                                self._touched.set()
            except BROKER_ERRORS:
                await asyncio.sleep(POLL_SECONDS)


def _heads(job_ids: list[str]) -> dict[str, tuple[int, str]]:
    rows = Job.objects.filter(pk__in=job_ids).values_list("id", "last_seq", "state")
    return {job_id: (last_seq, state) for job_id, last_seq, state in rows}


def _read(job_id: str, after: int) -> list[dict[str, Any]]:
    return [event_json(event) for event in JobEvent.objects.filter(job_id=job_id, seq__gt=after).order_by("seq")[:PAGE]]


def _is_contiguous(page: list[dict[str, Any]]) -> bool:
    return page[-1]["seq"] - page[0]["seq"] == len(page) - 1


_feeds: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Feed] = weakref.WeakKeyDictionary()


async def leave() -> None:
    """This process leaves: send away the readers that return."""
    await feed().leave()


def feed() -> Feed:
    """The running event loop's feed."""
    loop = asyncio.get_running_loop()
    if loop not in _feeds:
        _feeds[loop] = Feed()
    return _feeds[loop]
