"""Many calls of one job in flight: gathered into chunks, waited for, each answered once.

Coroutines await :meth:`RowPool.call`, as many at a time as the window allows; who has many calls and no
coroutine for each gives :meth:`RowPool.ask` a function to call with every result (a batch of short lines spends
a third of its time on tasks and futures otherwise). A dispatcher gathers what is asked into chunk messages, a
collector resolves them from SQL when the gpu side says which calls are finished, and once a second without being
told. Asking again for a call that SQL has finished answers from there. Cancellation, pause and loss of the job
come from ``ctx.check()`` and end every waiting call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

import structlog
from django.db import Error as DatabaseTrouble

from mlxplatform.broker import queues
from mlxplatform.broker.connections import BROKER_ERRORS, async_client
from mlxplatform.jobs.context import JobReleased, OwnershipLost
from mlxplatform.jobs.moves import MoveRefused
from mlxplatform.rows import chunks
from mlxplatform.rows.contract import RowRequest, RowResult
from mlxplatform.rows.placing import host_for
from mlxplatform.rows.sending import decode_ids, send
from mlxplatform.rows.sqlthread import SqlThread

log = structlog.get_logger(__name__)

#: Calls in one chunk message: enough that a message costs nothing per call, few enough to spread over hosts.
CHUNK_SIZE = 32
#: Calls one job keeps in flight: several chunks, so that stragglers of one never leave the engine's slots empty.
WINDOW = 256
#: Seconds to gather calls: short while the host may run dry, longer while it has plenty to do.
LINGER_IDLE, LINGER_BUSY = 0.02, 0.3
#: Seconds between looks whether the job should stop: they touch memory only.
WATCH = 0.1
#: Seconds between looks at SQL when nobody says that there is more.
POLL = 1.0


#: What ends a pool but not its job: whoever runs the job next waits for these same chunks.
GOES_ON = (OwnershipLost, MoveRefused, JobReleased, DatabaseTrouble)

#: Takes the one result of a call, or None when there will be none: :meth:`RowPool.check` then says why.
Sink = Callable[[RowResult | None], None]


class Context(Protocol):
    """What rows need of a job's context."""

    @property
    def job_id(self) -> str: ...

    def check(self) -> None: ...


class RowPool:
    """Async context manager. ``sql`` runs a function on the pool's database thread."""

    def __init__(
        self,
        ctx: Context,
        *,
        ancestors: Sequence[str] = (),
        window: int = WINDOW,
        chunk_size: int = CHUNK_SIZE,
        sql: SqlThread | None = None,
    ) -> None:
        self._ctx = ctx
        self._job = ctx.job_id
        self._ancestors = tuple(ancestors)
        self._chunk_size = chunk_size
        self._room = asyncio.Semaphore(window)
        self._incoming: list[RowRequest] = []
        self._asked = asyncio.Event()
        self._sinks: dict[str, Sink] = {}
        self._waiting: dict[int, str] = {}
        self._own_sql = sql is None
        self.sql = sql or SqlThread(self._job)
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._guarded(loop)) for loop in (self._dispatch, self._collect, self._watch)]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._waiting and not any(isinstance(why, GOES_ON) for why in (self._failure, error)):
            await self.sql(chunks.cancel_job, self._job)
        self._fail(self._failure or asyncio.CancelledError())
        if self._own_sql:
            await self.sql.close()

    async def call(self, row: RowRequest) -> RowResult:
        """The one outcome of this call. A failed call is a result with an error, not an exception."""
        async with self._room:
            future: asyncio.Future[RowResult | None] = asyncio.get_running_loop().create_future()
            self.ask(row, lambda result: None if future.done() else future.set_result(result))
            try:
                result = await future
            finally:
                self._sinks.pop(row.key, None)
            if result is None:
                self.check()
                raise asyncio.CancelledError
            return result

    def ask(self, row: RowRequest, sink: Sink) -> None:
        """Ask for a call without waiting for it; ``sink`` is called in the event loop. The caller keeps to a window.

        Raises:
            what ended the pool, if anything did.
        """
        self.check()
        if row.key in self._sinks:
            raise ValueError(f"the call {row.key} is already in flight")
        self._sinks[row.key] = sink
        self._incoming.append(row)
        self._asked.set()

    def check(self) -> None:
        """Raise what ended the pool, if anything did."""
        if self._failure is not None:
            raise self._failure

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    async def _guarded(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Run a loop; what ends it ends every waiting call, so that no coroutine hangs."""
        try:
            await loop()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # Not swallowed: every waiting call raises it.
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink(None)

    async def _dispatch(self) -> None:
        while True:
            await self._asked.wait()
            await self._gather()
            wave, self._incoming = self._incoming[: self._chunk_size * 2], self._incoming[self._chunk_size * 2 :]
            if not self._incoming:
                self._asked.clear()
            if not wave:
                continue
            by_model: dict[str | None, list[RowRequest]] = {}
            for row in wave:
                by_model.setdefault(row.request.model, []).append(row)
            for model, rows in by_model.items():
                await self._send(model or "", rows)

    async def _send(self, model: str, rows: Sequence[RowRequest]) -> None:
        """Record calls of one model and send their chunks to a host that has it."""
        host = await host_for(model, self.sql)
        admission = await self.sql(chunks.admit, self._job, host, rows, ancestors=self._ancestors, chunk_size=self._chunk_size)
        self._waiting.update(admission.waiting)
        for result in admission.finished:
            self._resolve(result)
        if admission.sendings:
            await self.sql(send, admission.sendings)

    async def _gather(self) -> None:
        """Wait a moment for more calls, longer while the host has enough to do anyway."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        while len(self._incoming) < self._chunk_size:
            linger = LINGER_BUSY if len(self._waiting) >= self._chunk_size else LINGER_IDLE
            left = started + linger - loop.time()
            if left <= 0:
                return
            await asyncio.sleep(min(left, LINGER_IDLE))

    async def _collect(self) -> None:
        signals = _Signals(self._job)
        looked = 0.0
        loop = asyncio.get_running_loop()
        try:
            while True:
                finished = await signals.wait(POLL)
                if loop.time() - looked >= POLL:
                    looked, finished = loop.time(), set(self._waiting)
                if not (wanted := self._waiting.keys() & finished):
                    continue
                for call_id, result in await self.sql(chunks.finished_among, wanted):
                    self._waiting.pop(call_id, None)
                    self._resolve(result)
        finally:
            await signals.close()

    async def _watch(self) -> None:
        """Notice that the job should stop; on its own, since results of long answers are seconds apart."""
        while True:
            self._ctx.check()
            await asyncio.sleep(WATCH)

    def _resolve(self, result: RowResult) -> None:
        if (sink := self._sinks.pop(result.key, None)) is not None:
            sink(result)


class _Signals:
    """The job's channel of finished calls, with a plain sleep for as long as the broker is away."""

    def __init__(self, job: str) -> None:
        self._channel = queues.rows_channel(job)
        self._pubsub = async_client().pubsub(ignore_subscribe_messages=True)
        self._subscribed = False

    async def wait(self, seconds: float) -> set[int]:
        """Ids of calls said to be finished; empty after ``seconds`` without a word."""
        heard: set[int] = set()
        try:
            if not self._subscribed:
                await self._pubsub.subscribe(self._channel)
                self._subscribed = True
            while (message := await self._pubsub.get_message(timeout=0 if heard else seconds)) is not None:
                heard.update(decode_ids(message["data"]))
        except BROKER_ERRORS as error:
            log.debug("rows.signals_lost", error=str(error))
            self._subscribed = False
            await asyncio.sleep(seconds)
        return heard

    async def close(self) -> None:
        try:
            await self._pubsub.aclose()
        except BROKER_ERRORS:
            return
