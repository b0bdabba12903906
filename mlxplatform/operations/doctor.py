"""Comparing what SQL says with what Redis and the disk hold, and putting right what can be put right.

A check finds; a finding may know its repair. Everything a running platform heals by itself within seconds is only
reported when it stays: run it twice before worrying. Repairs go through the same functions as everywhere else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from django.utils import timezone

from mlxplatform.batches import models as batches
from mlxplatform.batches.ending import job_ended
from mlxplatform.batches.models import Batch
from mlxplatform.broker.connections import BROKER_ERRORS, sync_client
from mlxplatform.broker.dramatiq_broker import DRAMATIQ_NAMESPACE
from mlxplatform.files import blobs
from mlxplatform.files.models import StoredFile, UploadPart
from mlxplatform.jobs import moves, wake
from mlxplatform.jobs.models import Job, JobEvent, Worker
from mlxplatform.jobs.states import LIVE, QUEUED, TERMINAL, TERMINAL_EVENTS, ZOMBIE


@dataclass(frozen=True)
class Finding:
    """Something that does not agree. ``repair`` None: a person must decide."""

    check: str
    subject: str
    what: str
    repair: Callable[[], object] | None = None


Check = Callable[[], Iterator[Finding]]


def owned_by_the_dead() -> Iterator[Finding]:
    """Jobs whose worker is not listed: the scheduler revives them within seconds when it runs."""
    for job in Job.objects.filter(state__in=LIVE).exclude(owner="").exclude(owner__in=Worker.objects.values("id")):
        yield Finding("jobs", job.id, f"it is {job.state}, but its worker is gone", _reviver(job))
    for job in Job.objects.filter(state=ZOMBIE):
        yield Finding("jobs", job.id, "its owner died and nobody decided about it", _reviver(job))


def _reviver(job: Job) -> Callable[[], object]:
    from mlxplatform.jobs.sweep import Sweeper

    return lambda: Sweeper().revive_orphans()


def without_message() -> Iterator[Finding]:
    """Due jobs of queues that hold no message: the scheduler sends them again when it runs."""
    due = Job.objects.filter(state=QUEUED, due_at__lte=timezone.now())
    for queue in due.order_by().values_list("queue", flat=True).distinct():
        try:
            if sync_client().llen(f"{DRAMATIQ_NAMESPACE}:{queue}"):
                continue
        except BROKER_ERRORS:
            yield Finding("broker", queue, "the broker cannot be reached")
            return
        for job in moves.claimable(queue)[:1000]:
            what = f"it is due, but queue {queue} holds no message for it"
            yield Finding("jobs", job.id, what, functools.partial(wake.worker, job))


def row_and_log_disagree() -> Iterator[Finding]:
    """An ended job whose last event is no end, or numbers that do not fit the log."""
    for job in Job.objects.filter(state__in=TERMINAL).order_by("-ended_at")[:5000]:
        last = JobEvent.objects.filter(job=job).order_by("-seq").values_list("seq", "type").first()
        if last is None or last[0] != job.last_seq or last[1] not in TERMINAL_EVENTS:
            yield Finding("jobs", job.id, "its last event is not its end")


def files_without_bytes() -> Iterator[Finding]:
    for file in StoredFile.objects.filter(producer="", deleted_at=None):
        path = blobs.path_of(file.id)
        if not path.exists():
            yield Finding("files", file.id, "its content is missing")
        elif path.stat().st_size != file.bytes:
            yield Finding("files", file.id, f"it has {path.stat().st_size} bytes instead of {file.bytes}")


def bytes_without_files() -> Iterator[Finding]:
    """What a process that died between writing and recording left."""
    for blob_id in blobs.stored_ids():
        known = UploadPart if blob_id.startswith("part_") else StoredFile
        if not known._default_manager.filter(pk=blob_id).exists():
            yield Finding("files", blob_id, "nothing refers to these bytes", functools.partial(blobs.remove, blob_id))


def batches_nobody_ends() -> Iterator[Finding]:
    """Batches that have not ended although their job has."""
    for batch in Batch.objects.exclude(status__in=batches.ENDED).select_related("job"):
        if batch.job is None:
            yield Finding("batches", batch.id, "it has no job")
        elif batch.job.state in TERMINAL and not _is_being_ended(batch):
            yield Finding("batches", batch.id, f"its job is {batch.job.state}, it is {batch.status}", _ender(batch))


def _is_being_ended(batch: Batch) -> bool:
    return Job.objects.filter(parent=batch.job_id, kind="batch.finish").exclude(state__in=TERMINAL).exists()


def _ender(batch: Batch) -> Callable[[], object]:
    def end() -> None:
        from django.db import transaction

        with transaction.atomic():
            Job.objects.filter(parent=batch.job_id, kind="batch.finish").update(idempotency_key=None)
            if batch.job is not None:
                job_ended(batch.job)

    return end


def counts_of_batches() -> Iterator[Finding]:
    for batch in Batch.objects.filter(status__in=[batches.COMPLETED, batches.CANCELLED, batches.EXPIRED]):
        if batch.finished_lines != batch.total:
            yield Finding("batches", batch.id, f"{batch.finished_lines} outcomes for {batch.total} lines")


CHECKS: tuple[Check, ...] = (
    owned_by_the_dead,
    without_message,
    row_and_log_disagree,
    files_without_bytes,
    bytes_without_files,
    batches_nobody_ends,
    counts_of_batches,
)


def examine() -> list[Finding]:
    """Everything that does not agree now."""
    return [finding for check in CHECKS for finding in check()]
