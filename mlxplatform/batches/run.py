"""The job behind a batch: validate the file, run every line once, keep what was finished whatever ends it.

Runs in a cpu worker. Reads the input line by line, holds a window of lines in flight, and writes outcomes in
small transactions under the job's fence. After a death it starts over: lines with an outcome are skipped, and
calls that rows finished are answered from SQL. Memory does not grow with the file, apart from a few bytes per line.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from django.db import InterfaceError, OperationalError, connections

from mlxplatform.batches import answering, lines, protocols, results
from mlxplatform.batches.ending import finish
from mlxplatform.batches.forecast import Forecaster
from mlxplatform.batches.lines import BatchLineIn, Keys, Problem
from mlxplatform.batches.models import COMPLETED, ENDED, FAILED, IN_PROGRESS, Batch
from mlxplatform.batches.protocols import ParsedLine
from mlxplatform.batches.results import Outcome
from mlxplatform.broker.connections import BROKER_ERRORS
from mlxplatform.files import service as files
from mlxplatform.inference.client import kind_of
from mlxplatform.inference.contract import Refusal
from mlxplatform.inference.placement import find_place
from mlxplatform.jobs.context import JobContext, JobFailed, OwnershipLost
from mlxplatform.jobs.moves import MoveRefused
from mlxplatform.rows.contract import RowResult
from mlxplatform.rows.pool import RowPool
from mlxplatform.rows.sqlthread import SqlThread

log = structlog.get_logger(__name__)

#: Lines in one batch, as in the APIs these follow.
MAX_LINES = {"openai": 50_000, "anthropic": 100_000}
#: Lines in flight: as many as rows keep, so that the engine's slots stay full over stragglers.
WINDOW = 256
#: Calls of one chunk message: twice as many as chains of calls take, since lines do not wait for each other.
CHUNK_LINES = 64
#: Outcomes written at once, and the longest one waits, seconds. 8 of them or 2 s would do for safety; a client
#: that watches the file grow sees half a second.
FLUSH_LINES, FLUSH_S = 64, 0.5
#: Lines read from the file in one visit to a thread.
READ_LINES = 64
#: Seconds between looks for a host while none is alive.
HOST_WAIT_S = 1.0
#: Seconds between progress events: a batch may run for a day.
TELL_S = 3.0
#: What a line gets that met a defect of ours.
DEFECT = Refusal(500, "internal_error", "This line could not be processed.")


def run(ctx: JobContext) -> dict[str, Any]:
    """The job's runner."""
    try:
        return asyncio.run(_run(ctx))
    except MoveRefused:
        raise OwnershipLost(ctx.job_id) from None


async def _run(ctx: JobContext) -> dict[str, Any]:
    sql = SqlThread(ctx.job_id)
    try:
        batch: Batch = await sql(Batch.objects.select_related("input_file").get, pk=ctx.config["batch"])
        if batch.status == COMPLETED and ctx.attempt > 1:
            # Its earlier owner died between ending the batch and saying so.
            return _result(await sql(finish, batch.id, ctx.job_id, ctx.holder, "completed", ctx.check))
        if batch.status in ENDED:
            raise JobFailed("batch_ended", "the batch has ended; create a new one")
        if batch.input_file is None:
            raise JobFailed("file_not_found", "the input file is gone")
        if batch.status != IN_PROGRESS:
            ctx.stage("validating", message="checking the input file")
            await sql(_validate, ctx, batch)
            batch = await sql(results.set_status, batch.id, IN_PROGRESS, total=batch.total, model=batch.model)
        runner = _Lines(ctx, batch, sql)
        await runner.run()
        ctx.stage("finalizing", progress=1.0, message="writing the result files")
        batch = await sql(finish, batch.id, ctx.job_id, ctx.holder, "completed", ctx.check)
        return _result(batch)
    finally:
        await sql.close()


def _result(batch: Batch) -> dict[str, Any]:
    return {"batch": batch.id, "status": batch.status, "total": batch.total, "failed": batch.total - batch.succeeded}


def _validate(ctx: JobContext, batch: Batch) -> None:
    """Count the lines and refuse a file that cannot run, naming every bad line up to a cap.

    Raises:
        JobFailed: the batch was moved to failed, with the problems on it.
    """
    assert batch.input_file is not None
    problems: list[Problem] = []
    bad, keys = 0, Keys()
    with files.open_blob(batch.input_file) as file:
        for count, item in enumerate(lines.read(file, batch.endpoint, batch.dialect)):
            if count % 500 == 0:
                ctx.check()
            if isinstance(item, BatchLineIn) and not keys.is_new(item.custom_id):
                message = f"Line {item.number}: the custom_id was used before."
                item = Problem("duplicate_custom_id", message, item.number, "custom_id")
            if isinstance(item, Problem):
                bad += 1
                if len(problems) < lines.PROBLEM_CAP:
                    problems.append(item)
                continue
            batch.total += 1
            batch.model = batch.model or str(item.body.get("model") or "")[:200]
    limit = MAX_LINES[batch.dialect]
    if batch.total > limit:
        problems.append(Problem("too_many_tasks", f"The file has {batch.total} lines; at most {limit} are allowed.", None))
    if not batch.total and not problems:
        problems.append(Problem("empty_file", "The file has no lines.", None))
    if problems:
        results.set_status(batch.id, FAILED, errors=[problem.json() for problem in problems])
        raise JobFailed("invalid_input", f"{max(bad, 1)} lines cannot be used; {problems[0].message}")


_Parsed = tuple[BatchLineIn, ParsedLine | Refusal]


@dataclass
class _Open:
    """A line whose calls are on their way. ``answers`` are in the order of its calls."""

    line: BatchLineIn
    parsed: ParsedLine
    answers: list[RowResult | None]
    missing: int


class _Lines:
    """Running the lines of one batch. No task and no future per line: those cost more than a short line's answer."""

    def __init__(self, ctx: JobContext, batch: Batch, sql: SqlThread):
        self._ctx = ctx
        self._batch = batch
        self._sql = sql
        self._protocol = protocols.get(batch.endpoint)
        self._open: dict[int, _Open] = {}
        self._outcomes: list[Outcome] = []
        self._news = asyncio.Event()
        self._flushed = time.monotonic()
        self._done = 0
        self._told = 0.0
        self._forecast: Forecaster | None = None

    async def run(self) -> None:
        assert self._batch.input_file is not None
        finished: set[int] = await self._sql(results.finished_numbers, self._batch.id)
        self._done = len(finished)
        self._forecast = Forecaster(time.time(), self._done)
        self._tell()
        file = files.open_blob(self._batch.input_file)
        try:
            async with RowPool(self._ctx, window=WINDOW, chunk_size=CHUNK_LINES, sql=self._sql) as pool:
                async for block in self._read(file, finished):
                    await self._begin(pool, block)
                    while len(self._open) > WINDOW - READ_LINES:
                        await self._wait(pool)
                while self._open:
                    await self._wait(pool)
        finally:
            file.close()
            while self._outcomes:
                await self._flush()

    async def _read(self, file: Any, finished: set[int]) -> AsyncIterator[list[_Parsed]]:
        """The lines that have no outcome yet, read and parsed ahead in a thread, a block at a time."""
        source = lines.read(file, self._batch.endpoint, self._batch.dialect)
        wanted = (item for item in source if isinstance(item, BatchLineIn) and item.number not in finished)

        def block() -> list[_Parsed]:
            return [(line, self._parsed(line)) for line in itertools.islice(wanted, READ_LINES)]

        while parsed := await asyncio.to_thread(block):
            yield parsed

    def _parsed(self, line: BatchLineIn) -> ParsedLine | Refusal:
        try:
            return answering.parse(self._protocol, line)
        except Refusal as refusal:
            return refusal
        except Exception:  # a defect met by one line costs that line
            log.exception("batch_line_not_read", batch=self._batch.id, line=line.number)
            return DEFECT

    async def _begin(self, pool: RowPool, block: list[_Parsed]) -> None:
        """Ask for the calls of a block of lines; those that cannot run have their outcome at once."""
        models: dict[tuple[str | None, str], str | Refusal] = {}
        for line, parsed in block:
            if isinstance(parsed, Refusal):
                self._refuse(line, parsed)
                continue
            wanted = (parsed.model, kind_of(parsed.requests[0]))
            if wanted not in models:
                try:
                    models[wanted] = await self._model(*wanted)
                except Refusal as refusal:
                    models[wanted] = refusal
            model = models[wanted]
            if isinstance(model, Refusal):
                self._refuse(line, model)
                continue
            rows = answering.calls(self._batch, line, parsed, model)
            self._open[line.number] = _Open(line, parsed, [None] * len(rows), len(rows))
            for index, row in enumerate(rows):
                pool.ask(row, partial(self._answer, line.number, index))

    def _refuse(self, line: BatchLineIn, refusal: Refusal) -> None:
        self._outcomes.append(answering.refused(self._batch, self._protocol, line, refusal))

    def _answer(self, number: int, index: int, result: RowResult | None) -> None:
        self._news.set()
        line = self._open.get(number)
        if result is None or line is None:
            return
        line.answers[index] = result
        line.missing -= 1
        if not line.missing:
            del self._open[number]
            answers = [answer for answer in line.answers if answer is not None]
            try:
                outcome = answering.outcome(self._batch, self._protocol, line.line, line.parsed, answers, int(time.time()))
            except Exception:  # as above
                log.exception("batch_line_not_written", batch=self._batch.id, line=number)
                self._refuse(line.line, DEFECT)
                return
            self._outcomes.append(outcome)

    async def _wait(self, pool: RowPool) -> None:
        """Until some line ends or it is time to write.

        Raises:
            what ended the pool.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._news.wait()
        self._news.clear()
        pool.check()
        if len(self._outcomes) >= FLUSH_LINES or time.monotonic() - self._flushed >= FLUSH_S:
            await self._flush()

    async def _model(self, name: str | None, kind: str) -> str:
        """The model a line runs on, waiting for a host if there is none.

        Raises:
            Refusal: there is no such model.
        """
        while True:
            try:
                return (await find_place(name, kind, strict=True, project=self._batch.project)).model.id
            except Refusal as refusal:
                if refusal.status < 500:
                    raise
            except BROKER_ERRORS as error:
                log.debug("batch_waits_for_broker", error=type(error).__name__)
            self._ctx.check()
            self._tell("waiting", "waiting for a GPU host")
            await self._flush()  # what was answered before the host went is there to be read
            await asyncio.sleep(HOST_WAIT_S)

    async def _flush(self) -> None:
        outcomes, self._outcomes, self._flushed = self._outcomes, [], time.monotonic()
        if not outcomes:
            return
        try:
            await self._sql(results.record, self._batch.id, self._ctx.job_id, self._ctx.holder, outcomes)
        except (OperationalError, InterfaceError) as error:
            # Locked for longer than a writer waits, full or away: nothing is lost, the next flush writes these too.
            log.warning("batch_flush_delayed", batch=self._batch.id, lines=len(outcomes), error=type(error).__name__)
            self._outcomes = outcomes + self._outcomes
            await self._sql(connections.close_all)
            self._ctx.check()
            await asyncio.sleep(FLUSH_S)
            return
        self._done += len(outcomes)
        if self._forecast is not None:
            self._forecast.note(time.time(), self._done)
            estimate = self._forecast.estimate(time.time(), self._batch.total - self._done)
            await self._sql(results.set_forecast, self._batch.id, estimate)
        self._tell()

    def _tell(self, stage: str = "running", message: str = "") -> None:
        """Say where it stands, not more often than anybody can read."""
        total, now = self._batch.total, time.monotonic()
        if now - self._told >= TELL_S or self._done >= total:
            self._told = now
            share = self._done / max(total, 1) * 0.99
            self._ctx.stage(stage, progress=share, message=message or f"{self._done} of {total} lines")
