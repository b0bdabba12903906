"""The job that makes one version: rounds over a template's sources, then files.

Durable in pieces: each model call is a row call, each source's rows are saved together, each round is settled
again from SQL. Started again after any death it meets what is there and makes exactly what is missing.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import structlog

from mlxplatform.broker.connections import BROKER_ERRORS
from mlxplatform.datasets import finishing, lifecycle, preview, rowstore, rowtext, shape
from mlxplatform.datasets.asking import Asking, Voice
from mlxplatform.datasets.filters.judging import judge
from mlxplatform.datasets.filters.rowwise import judge_row
from mlxplatform.datasets.models import DatasetVersion
from mlxplatform.datasets.options import FRUITLESS_ROUNDS, MAX_ROUNDS, Options, stored
from mlxplatform.datasets.rowstore import Made, SourceDone
from mlxplatform.datasets.settle import settle
from mlxplatform.datasets.templates.base import (
    PROJECT,
    Answer,
    CallFailed,
    Draft,
    Drop,
    Source,
    SourceError,
    Template,
    failed,
    uses_model,
)
from mlxplatform.datasets.templates.registry import TEMPLATES
from mlxplatform.datasets.templates.together import together
from mlxplatform.inference.contract import Refusal
from mlxplatform.inference.placement import find_place
from mlxplatform.jobs.context import JobContext, JobFailed, JobStopped, OwnershipLost
from mlxplatform.rows.pool import WINDOW, RowPool
from mlxplatform.rows.sqlthread import SqlThread

log = structlog.get_logger(__name__)

#: Sources written in one transaction, and seconds a finished source waits for others at most.
SAVE_SOURCES, SAVE_SECONDS = 64, 1.0
#: Seconds between progress events, and while nothing changes.
PROGRESS_SECONDS, QUIET_SECONDS = 0.5, 15.0
#: Sources a preview counts at most, beyond those it runs.
COUNTED_SOURCES = 100_000
#: Share of the job's progress taken by starting and by making rows.
STARTED, MADE = 0.05, 0.95


def run(ctx: JobContext) -> dict[str, Any]:
    """Runner of the kinds ``dataset`` and ``dataset_preview``."""
    return asyncio.run(_run(ctx))


async def _run(ctx: JobContext) -> dict[str, Any]:
    sql = SqlThread(ctx.job_id)
    try:
        version = await sql(lifecycle.begin, ctx.job_id)
        if version.state == DatasetVersion.State.READY:
            return lifecycle.result_of(version)
        return await DatasetRun(ctx, version, sql).make()
    finally:
        await sql.close()


class DatasetRun:
    """One attempt at one version."""

    def __init__(self, ctx: JobContext, version: DatasetVersion, sql: SqlThread) -> None:
        self.ctx = ctx
        self.sql = sql
        self.version = version
        self.template: Template = TEMPLATES[ctx.config["template"]]
        self.inputs: dict[str, Any] = {**version.inputs, PROJECT: ctx.project}
        self.options: Options = stored(version.options)
        self.voice = Voice("", self.options.seed)
        self.pool: RowPool | None = None
        self._done: set[str] = set()
        self._buffer: list[SourceDone] = []
        self._saved_at = self._told_at = time.monotonic()
        self._told = (-1, -1, -1)
        self._accepted = self._accepted_before = 0
        self._dropped: Counter[str] = Counter()
        self._started_at = time.monotonic()
        self._fresh = self._sources_run = self._sources_seen = 0

    async def make(self) -> dict[str, Any]:
        self.ctx.stage("starting", STARTED)
        self._done = await self.sql(rowstore.done_sources, self.version.pk)
        self._accepted, self._dropped = await self.sql(rowstore.counts, self.version.pk)
        self._accepted_before = self._accepted
        async with self._calling():
            # Waiting for a host and a model is no part of what a row takes.
            self._started_at = time.monotonic()
            accepted = await self._rounds()
        if self.version.dataset.preview:
            self.ctx.check()
            seconds = time.monotonic() - self._started_at
            return await self.sql(preview.finish, self.version, self._sources_run, self._sources_seen, seconds)
        if not accepted:
            samples = await self.sql(rowstore.samples, self.version.pk)
            why = rowstore.reasons_sentence(self._dropped, samples)
            raise JobFailed("zero_rows", f"generator produced 0 rows: {why}")
        self.ctx.check()
        self.ctx.stage("publishing", MADE, f"{accepted} rows")
        version = await self.sql(finishing.publish, self.version.pk, self.ctx, time.monotonic() - self._started_at)
        result = lifecycle.result_of(version)
        self.ctx.stage("done", 1.0, finishing.sentence(version), n_train=result["n_train"], n_valid=result["n_valid"])
        for name, info in version.files.items():
            self.ctx.artefact(name, **info)
        return result

    @asynccontextmanager
    async def _calling(self) -> AsyncIterator[None]:
        """The row pool and the voice, for runs that call a model."""
        if not uses_model(self.template, self.inputs) and self.options.filters.judge is None:
            yield
            return
        model = await self._model()
        self.voice = Voice(model, self.options.seed, self.options.temperature, self.options.top_p, self.ctx.project)
        await self.sql(lifecycle.note_model, self.version.pk, model)
        async with RowPool(self.ctx, ancestors=self.options.ancestors, sql=self.sql) as self.pool:
            yield

    async def _model(self) -> str:
        """The model's id; waits for a host when none is alive."""
        while True:
            try:
                return (await find_place(self.options.model or None, strict=True, project=self.ctx.project)).model.id
            except Refusal as refusal:
                if refusal.status != 503:
                    raise JobFailed(refusal.code, refusal.message) from None
            except BROKER_ERRORS as error:
                log.debug("datasets.no_broker", error=str(error))
            self.ctx.stage("waiting", STARTED, "waiting for an engine")
            await asyncio.sleep(1.0)
            self.ctx.check()

    async def _rounds(self) -> int:
        accepted = fruitless = 0
        for round_ in range(MAX_ROUNDS):
            before = accepted
            await self._round(round_)
            accepted = await self.sql(settle, self.version.pk, self.template, self.inputs, self.options)
            self._accepted, self._dropped = await self.sql(rowstore.counts, self.version.pk)
            fruitless = fruitless + 1 if accepted <= before else 0
            target = self.options.rows
            if target is None or accepted >= target or not self.template.repeatable or fruitless >= FRUITLESS_ROUNDS:
                break
        return accepted

    async def _round(self, round_: int) -> None:
        """Every source of the template once, a window of them at a time."""
        try:
            sources = await self.sql(self._sources, round_)
        except SourceError as error:
            raise JobFailed(error.code, error.message) from None
        total = len(sources)
        running: set[asyncio.Task[SourceDone]] = set()
        try:
            for number, (index, source) in enumerate(sources):
                if self._enough():
                    break
                if self.pool is None:
                    self._buffer.append(await self._make(round_, index, source))
                else:
                    running.add(asyncio.create_task(self._make(round_, index, source)))
                    while len(running) >= WINDOW:
                        running = await self._collect(running)
                await self._save_if_due(total, number + 1 - len(running))
            while running:
                running = await self._collect(running)
                await self._save_if_due(total, total - len(running))
        except JobStopped as stop:
            if not isinstance(stop, OwnershipLost):
                await self._write()
            raise
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        await self._save()
        self._tell(total, total, force=True)

    async def _collect(self, running: set[asyncio.Task[SourceDone]]) -> set[asyncio.Task[SourceDone]]:
        done, left = await asyncio.wait(running, timeout=SAVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        try:
            # What is finished first: it is kept, whatever the others say.
            for task in sorted(done, key=lambda task: task.exception() is not None):
                self._buffer.append(task.result())
        finally:
            running.difference_update(done)
        return left

    def _sources(self, round_: int) -> list[tuple[int, Source]]:
        """Sources not yet done, with their places; drops of the input become rows of the first round."""
        found: list[tuple[int, Source]] = []
        taken = 0
        for index, source in enumerate(self.template.sources(self.inputs)):
            if isinstance(source, Drop):
                key = f"input.{index}"
                if round_ == 0 and key not in self._done:
                    self._note_drop(index, key, source)
                continue
            self._sources_seen += round_ == 0
            if self.options.limit is not None and taken >= self.options.limit:
                if self._sources_seen >= COUNTED_SOURCES:
                    break
                continue
            taken += 1
            self._sources_run += 1
            key = source.key if round_ == 0 else f"r{round_}.{source.key}"
            if key not in self._done:
                found.append((index, Source(key, source.data)))
        return found

    def _note_drop(self, index: int, key: str, drop: Drop) -> None:
        detail = f"{drop.where}: {drop.detail}" if drop.where and drop.detail else drop.where or drop.detail
        self._buffer.append(SourceDone(key, 0, index, [Made(None, drop.reason, detail)]))
        self._dropped[drop.reason] += 1

    async def _make(self, round_: int, index: int, source: Source) -> SourceDone:
        ask: Asking | _NoModel = (
            Asking(self.pool, self.voice, source.key, rowstore.ordinal(round_, index, 0)) if self.pool else _NoModel()
        )
        try:
            drafts = list(await self.template.build(source, self.inputs, ask))
            made = await together(self._verdict(number, draft, ask) for number, draft in enumerate(drafts))
        except CallFailed as error:
            drop = failed(error)
            made = [Made(None, drop.reason, drop.detail)]
        made = made or [Made(None, "no_row", "the template made no row of this source")]
        for row in made:
            if row.reason:
                self._dropped[row.reason] += 1
            else:
                self._accepted += 1
        self._fresh += 1
        return SourceDone(source.key, round_, index, made)

    async def _verdict(self, number: int, draft: Draft | Drop, ask: Asking | _NoModel) -> Made:
        if isinstance(draft, Drop):
            return Made(None, draft.reason, draft.detail)
        row = dict(draft.content)
        chars = rowtext.length(row)
        field, problem = shape.problem(row, check=self.template.check)
        if problem:
            return Made(row, "shape", f"{field} {problem}", chars)
        verdict = judge_row(row, self.options.filters, self.template, ask.cut)
        if verdict.reason or self.options.filters.judge is None:
            return Made(row, verdict.reason, verdict.detail, chars, verdict.notes)
        try:
            scored = await judge(ask, f"judge{number}", row, self.options.filters.judge)
        except CallFailed as error:
            drop = failed(error)
            return Made(row, drop.reason, drop.detail, chars, verdict.notes)
        return Made(row, scored.reason, scored.detail, chars, verdict.notes | scored.notes)

    def _enough(self) -> bool:
        """Enough rows for now: what the set filters take away the next round makes good."""
        return self.options.rows is not None and self._accepted >= self.options.rows

    async def _save_if_due(self, total: int, done: int) -> None:
        if len(self._buffer) >= SAVE_SOURCES or time.monotonic() - self._saved_at >= SAVE_SECONDS:
            await self._save()
        self._tell(total, done)

    async def _save(self) -> None:
        self.ctx.check()
        await self._write()

    async def _write(self) -> None:
        batch, self._buffer = self._buffer, []
        self._saved_at = time.monotonic()
        if batch:
            await self.sql(rowstore.save, self.version.pk, batch)
            self._done.update(done.source for done in batch)

    def _tell(self, total: int, done: int, *, force: bool = False) -> None:
        now = time.monotonic()
        state = (done, self._accepted, self._dropped.total())
        quiet = PROGRESS_SECONDS if state != self._told else QUIET_SECONDS
        if not force and now - self._told_at < quiet:
            return
        self._told_at, self._told = now, state
        target = self.options.rows
        share = min(self._accepted / target, 1.0) if target else (done / total if total else 1.0)
        seconds = max(now - self._started_at, 1e-3)
        rate = self._fresh / seconds
        # Towards a number of rows what counts is how fast acceptable ones come, and of this attempt only.
        coming = (self._accepted - self._accepted_before) / seconds if target else rate
        left = (target - self._accepted if target else total - done) if total else 0
        self.ctx.stage(
            "generating",
            STARTED + (MADE - STARTED) * share,
            f"{self._accepted}/{target} rows" if target else f"{done}/{total}",
            accepted=self._accepted,
            dropped=dict(self._dropped),
            rows_per_s=round(rate, 2),
            eta_s=round(left / coming) if coming > 0 and left > 0 else 0,
        )


class _NoModel:
    """The ``ask`` of a run without a model."""

    model = ""
    cut: frozenset[str] = frozenset()

    async def __call__(self, *_: Any, **__: Any) -> Answer:
        raise CallFailed("no_model", "this template does not call a model")
