"""One subscription per event loop, fanned out to the requests that wait on it.

The gpu process publishes one frame per decode step per web process: the new events of all its requests. This module
splits frames, checks their numbering and hands events to bounded inboxes. It knows nothing of prompts or protocols.

What it guarantees a waiting request: its events in order without a gap, or a ``Failed``. Failures it makes itself:
the broker's connection was lost (events may be missing), the host's gpu process died or was replaced, a gap in the
numbers, or a reader so slow that its inbox passed the limit. In each case a cancel is sent, so nothing keeps
generating for nobody. Cancels go through one task, so that a cancelled view need not await anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import secrets
import time
import weakref
from collections import deque
from typing import Any

import msgspec
import structlog

from mlxplatform.broker import queues
from mlxplatform.broker.connections import BROKER_ERRORS, async_client
from mlxplatform.inference import placement
from mlxplatform.inference.contract import Admitted, Delivery, Event, Failed, Finished, Reasoning, Text, Usage, decode_frame

log = structlog.get_logger(__name__)

#: Characters of text an inbox holds for a reader that does not read. Long answers are about 100 kB.
INBOX_LIMIT = 1024 * 1024
#: Text-free events count this much towards the limit.
EVENT_COST = 64
#: Seconds between looks at whether the hosts of open requests are alive.
WATCH_SECONDS = 2.0
#: Seconds a background request waits for its host to come back.
BACKGROUND_PATIENCE = 180.0
#: Seconds between attempts to subscribe again after the broker went away.
RECONNECT_SECONDS = 0.5

LOST_BROKER = Failed("engine_unavailable", "The connection to the message broker was lost. Try again.", 503, retry_after=2)
LOST_ENGINE = Failed("engine_unavailable", "The engine that worked on this request is gone. Try again.", 503, retry_after=2)
GAP = Failed("engine_unavailable", "Part of the answer was lost on its way. Try again.", 503, retry_after=1)
TOO_SLOW = Failed("client_too_slow", "The answer was not read fast enough and was stopped.", 408)

_pack = msgspec.msgpack.Encoder().encode


class Inbox:
    """What piled up for one request. One reader."""

    __slots__ = (
        "_alarm",
        "_patience_ends",
        "_reader",
        "background",
        "cost",
        "ended",
        "host",
        "instance",
        "lost_at",
        "next_seq",
        "pending",
        "pieces",
        "prompt",
    )

    def __init__(self, host: str, instance: str, *, background: bool = False) -> None:
        self.host = host
        self.instance = instance
        self.background = background
        #: Since when its host is gone, monotonic seconds; background requests wait for it to come back.
        self.lost_at: float | None = None
        self.next_seq = 1
        #: Prompt tokens, and pieces of text that came: each holds a token or more.
        self.prompt = self.pieces = 0
        self.pending: list[Event] = []
        self.cost = 0
        self.ended = False
        self._reader: asyncio.Future[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._patience_ends = 0.0

    def put(self, events: list[Event]) -> None:
        self.pending += events
        for event in events:
            if isinstance(event, (Text, Reasoning)):
                self.cost += len(event.text)
                self.pieces += 1
            else:
                self.cost += EVENT_COST
                if isinstance(event, Admitted):
                    self.prompt = event.prompt_tokens
        self._wake()

    def usage(self) -> Usage | None:
        """What was used at least, for an answer whose true count is lost with its engine or broker."""
        return Usage(self.prompt, self.pieces) if self.pieces else None

    def take(self) -> list[Event]:
        events, self.pending, self.cost = self.pending, [], 0
        return events

    async def wait(self, timeout: float | None) -> None:
        """Until something is pending, or for ``timeout`` seconds.

        No timer is set for each event, since most come long before it would ring: one that rings too early is set again.
        """
        if self.pending:
            return
        loop = asyncio.get_running_loop()
        self._reader = loop.create_future()
        self._patience_ends = math.inf if timeout is None else loop.time() + timeout
        if timeout is not None and (self._alarm is None or self._alarm.when() > self._patience_ends):
            self._set_alarm(loop)
        try:
            await self._reader
        finally:
            self._reader = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _set_alarm(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = loop.call_at(self._patience_ends, self._ring, loop)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._alarm = None
        if self._reader is None or self._patience_ends == math.inf:
            return
        if loop.time() < self._patience_ends:
            self._set_alarm(loop)
        else:
            self._wake()


def merge(events: list[Event]) -> list[Event]:
    """The same events with neighbouring texts of one kind joined."""
    merged: list[Event] = []
    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, (Text, Reasoning)) and type(event) is type(last):
            merged[-1] = type(event)(last.text + event.text, [*last.logprobs, *event.logprobs])
        else:
            merged.append(event)
    return merged


class Hub:
    """Use :func:`hub`; one exists per event loop."""

    def __init__(self) -> None:
        self.channel = queues.frames_channel(f"{secrets.token_hex(8)}")
        self.inboxes: dict[str, Inbox] = {}
        self._subscribed = asyncio.Event()
        self._cancels: deque[tuple[str, str, str]] = deque()
        self._cancel_wanted = asyncio.Event()
        self._cancels_sent = asyncio.Event()
        self._cancels_sent.set()
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()

    async def ready(self, timeout: float) -> None:
        """Return once frames can arrive.

        Raises:
            TimeoutError: the broker is down.
        """
        if not self._tasks:
            # A context of their own: that of the request which happened to come first carries a thread that ends with it.
            works = (self._receive, self._send_cancels, self._watch)
            self._tasks = [asyncio.create_task(work(), context=contextvars.Context()) for work in works]
        if not self._subscribed.is_set():
            await asyncio.wait_for(self._subscribed.wait(), timeout)

    def open(self, request_id: str, host: str, instance: str, *, background: bool = False) -> Inbox:
        inbox = self.inboxes[request_id] = Inbox(host, instance, background=background)
        return inbox

    def open_on(self, host: str) -> int:
        """Requests of this process that are unfinished on a host."""
        return sum(1 for inbox in self.inboxes.values() if inbox.host == host)

    def close(self, request_id: str) -> None:
        self.inboxes.pop(request_id, None)

    def cancel(self, request_id: str, host: str, reason: str) -> None:
        """Ask the host to stop, without waiting for it. Safe for requests that already ended."""
        self.close(request_id)
        self._cancels.append((host, request_id, reason))
        self._cancel_wanted.set()
        self._cancels_sent.clear()

    def abandon(self, request_id: str, host: str) -> None:
        """For finalizers: the owner vanished without closing; any thread may call this."""
        if request_id in self.inboxes and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.cancel, request_id, host, "abandoned")

    async def flush(self) -> None:
        """Wait until the cancels asked for so far are sent, for a caller whose event loop ends next."""
        await self._cancels_sent.wait()

    async def _receive(self) -> None:
        while True:
            try:
                async with async_client().pubsub(ignore_subscribe_messages=False) as pubsub:
                    await pubsub.subscribe(self.channel)
                    async for message in pubsub.listen():
                        if message["type"] == "message":
                            self._deliver(message["data"])
                        elif message["type"] == "subscribe":
                            # A second one: redis-py has reconnected by itself, and frames in between are lost.
                            self._fail_all()
                            self._subscribed.set()
            except BROKER_ERRORS as error:
                log.warning("frames interrupted", error=str(error), open=len(self.inboxes))
            self._subscribed.clear()
            self._fail_all()
            await asyncio.sleep(RECONNECT_SECONDS)

    def _fail_all(self) -> None:
        for request_id in list(self.inboxes):
            self._fail(request_id, LOST_BROKER)

    def _deliver(self, frame: bytes) -> None:
        try:
            deliveries = decode_frame(frame)
        except msgspec.DecodeError as error:
            log.error("unreadable frame", error=str(error), size=len(frame))
            return
        for delivery in deliveries:
            inbox = self.inboxes.get(delivery.request)
            if inbox is not None:
                self._hand_over(delivery, inbox)

    def _hand_over(self, delivery: Delivery, inbox: Inbox) -> None:
        events = delivery.events
        if delivery.seq != inbox.next_seq:
            if delivery.seq > inbox.next_seq:
                self._fail(delivery.request, GAP)
                return
            events = events[inbox.next_seq - delivery.seq :]
            if not events:
                return
        inbox.next_seq += len(events)
        inbox.put(events)
        if isinstance(events[-1], (Finished, Failed)):
            inbox.ended = True
            self.close(delivery.request)
        elif inbox.cost > INBOX_LIMIT:
            inbox.pending.clear()
            self._fail(delivery.request, TOO_SLOW)

    def _fail(self, request_id: str, failed: Failed) -> None:
        inbox = self.inboxes.get(request_id)
        if inbox is None:
            return
        inbox.put([msgspec.structs.replace(failed, usage=inbox.usage())])
        inbox.ended = True
        self.cancel(request_id, inbox.host, failed.code)

    async def _send_cancels(self) -> None:
        while True:
            await self._cancel_wanted.wait()
            self._cancel_wanted.clear()
            while self._cancels:
                host, request_id, reason = self._cancels[0]
                message = _pack({"op": "cancel", "request": request_id, "reason": reason})
                try:
                    await async_client().rpush(queues.control_key(host), message)
                except BROKER_ERRORS:
                    await asyncio.sleep(RECONNECT_SECONDS)
                    continue
                self._cancels.popleft()
            self._cancels_sent.set()

    async def _watch(self) -> None:
        """Fail the requests of hosts that are gone. Two looks must agree: a late heartbeat is no death."""
        suspects: set[str] = set()
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if not self.inboxes:
                suspects.clear()
                continue
            try:
                alive = {state.name: state.instance for state in await placement.live_hosts()}
            except BROKER_ERRORS:
                continue
            except Exception:  # a database that is locked for a while must not end the watch
                log.exception("hosts not read")
                continue
            lost = {request for request, inbox in self.inboxes.items() if _is_lost(inbox, alive.get(inbox.host))}
            for request_id in lost & suspects:
                self._fail(request_id, LOST_ENGINE)
            suspects = lost & set(self.inboxes)


def _is_lost(inbox: Inbox, instance: str | None) -> bool:
    """Whether the process that works on a request is gone for good. ``instance`` is the one that lives on its host now.

    A background request is taken up again by the host's next process, from its stored events.
    """
    if instance == inbox.instance:
        inbox.lost_at = None
        return False
    if not inbox.background:
        return True
    if instance is not None:
        inbox.instance, inbox.lost_at = instance, None
        return False
    inbox.lost_at = inbox.lost_at or time.monotonic()
    return time.monotonic() - inbox.lost_at > BACKGROUND_PATIENCE


_hubs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = weakref.WeakKeyDictionary()


def hub() -> Hub:
    """The hub of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _hubs.get(loop)
    if found is None:
        found = _hubs[loop] = Hub()
    return found


def control(op: str, **fields: Any) -> bytes:
    """A message for a host's control list."""
    return _pack({"op": op, **fields})
