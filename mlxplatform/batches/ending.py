"""Ending a batch, whoever ends it: give every line an outcome, write the files, set the final status.

One function for all ways to end. Each step is repeatable, so that a process killed in the middle of it is followed
by one that finishes the work. A batch fails only for its input; cancelled and expired ones keep what was done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import structlog
from django.utils import timezone

from mlxplatform.batches import answering, lines, protocols, results
from mlxplatform.batches.lines import BatchLineIn
from mlxplatform.batches.models import CANCELLED, CANCELLING, COMPLETED, ENDED, EXPIRED, FINALIZING, Batch
from mlxplatform.batches.protocols import LineProtocol
from mlxplatform.batches.results import Outcome
from mlxplatform.files import service as files
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import service as jobs
from mlxplatform.jobs.context import JobContext
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.moves import Holder
from mlxplatform.rows.contract import RowError, RowResult, decode_output
from mlxplatform.rows.models import RowCall, RowChunk

log = structlog.get_logger(__name__)

FINISH_KIND = "batch.finish"
#: Lines given an outcome in one transaction.
SLICE = 500
#: The final status for each way to end. "interrupted": the job failed for a reason that is not the input's.
STATUS = {"completed": COMPLETED, "cancelled": CANCELLED, "expired": EXPIRED, "interrupted": COMPLETED}
INTERRUPTED = Refusal(500, "batch_interrupted", "This request was not run because the batch was interrupted.")


def finish(batch_id: str, job_id: str, holder: Holder, way: str, check: Callable[[], None]) -> Batch:
    """Bring the batch to its end in the given way. ``check`` raises when the job should stop.

    Raises:
        MoveRefused, JobStopped: somebody else does it now.
    """
    batch = Batch.objects.select_related("input_file", "output_file", "error_file").get(pk=batch_id)
    if batch.status in ENDED:
        _tidy(batch, job_id)  # whoever ended it may have died before this
        return batch
    if batch.status == CANCELLING:
        way = "cancelled"  # also when its last line was answered while somebody cancelled: nothing else follows that
    if way != "completed":
        _settle_rest(batch, job_id, holder, way, check)
    if way in {"completed", "interrupted"}:
        results.set_status(batch_id, FINALIZING)
    batch = Batch.objects.select_related("output_file", "error_file").get(pk=batch_id)
    results.complete_files(batch)
    batch = results.set_status(batch_id, STATUS[way], forecast=None)
    _tidy(batch, job_id)
    log.info("batch_ended", batch=batch_id, status=batch.status, total=batch.total, succeeded=batch.succeeded)
    return batch


def _tidy(batch: Batch, job_id: str) -> None:
    """Free what only a running batch needs. Repeatable."""
    results.forget_lines(batch)
    for job in filter(None, {batch.job_id, job_id}):
        while calls := list(RowCall.objects.filter(job=job).values_list("id", flat=True)[:2000]):
            RowCall.objects.filter(id__in=calls).delete()
        RowChunk.objects.filter(job=job).delete()


def _settle_rest(batch: Batch, job_id: str, holder: Holder, way: str, check: Callable[[], None]) -> None:
    """Give every line that has no outcome the one that fits the way it ended."""
    if batch.input_file is None:
        return
    finished, total = results.finished_numbers(batch.id), 0
    slice_: list[BatchLineIn] = []
    keys = lines.Keys()
    with files.open_blob(batch.input_file) as file:
        for item in lines.read(file, batch.endpoint, batch.dialect):
            if not isinstance(item, BatchLineIn) or not keys.is_new(item.custom_id):
                continue
            total += 1
            if item.number not in finished:
                slice_.append(item)
            if len(slice_) >= SLICE:
                check()
                results.record(batch.id, job_id, holder, _outcomes(batch, slice_, way))
                slice_ = []
    if slice_:
        results.record(batch.id, job_id, holder, _outcomes(batch, slice_, way))
    if batch.total != total:
        Batch.objects.filter(pk=batch.id).update(total=total)


def _outcomes(batch: Batch, unsettled: list[BatchLineIn], way: str) -> list[Outcome]:
    """The answer of a line whose calls were all finished when the batch ended, else what the way to end says."""
    protocol = protocols.get(batch.endpoint)
    rows: dict[str, RowCall] = {}
    numbers = [line.number for line in unsettled]
    for row in RowCall.objects.filter(job=batch.job_id, ordinal__in=numbers).exclude(state=RowCall.State.PENDING):
        rows[row.key] = row
    return [_salvaged(batch, protocol, line, rows) or _unfinished(batch, protocol, line, way) for line in unsettled]


def _salvaged(batch: Batch, protocol: LineProtocol, line: BatchLineIn, rows: dict[str, RowCall]) -> Outcome | None:
    if f"{line.number}:0" not in rows:
        return None
    try:
        parsed = answering.parse(protocol, line)
    except Refusal as refusal:
        return answering.refused(batch, protocol, line, refusal)
    found = [rows.get(f"{line.number}:{index}") for index in range(len(parsed.requests))]
    answers = [_result(row) for row in found if row is not None]
    if len(answers) < len(found):
        return None
    return answering.outcome(batch, protocol, line, parsed, answers, int(timezone.now().timestamp()))


def _result(row: RowCall) -> RowResult:
    if row.state == RowCall.State.FAILED:
        return RowResult(row.key, row.ordinal, error=msgspec.convert(row.error, RowError))
    return RowResult(row.key, row.ordinal, output=decode_output(bytes(row.output or b"")))


def _unfinished(batch: Batch, protocol: LineProtocol, line: BatchLineIn, way: str) -> Outcome:
    if way == "interrupted":
        return answering.refused(batch, protocol, line, INTERRUPTED)
    return Outcome(line.number, way, lines.unfinished(batch.dialect, batch.id, line, way))


def run_finish(ctx: JobContext) -> dict[str, Any]:
    """Runner of the job that ends a batch whose own job ended before its time."""
    batch = finish(ctx.config["batch"], ctx.job_id, ctx.holder, ctx.config["way"], ctx.check)
    return {"batch": batch.id, "status": batch.status}


def job_ended(job: Job) -> None:
    """In the transaction that ends a batch's job: if the batch itself has not ended, have somebody end it."""
    batch = Batch.objects.select_for_update(of=("self",)).filter(job=job).first()
    if batch is None or batch.status in ENDED:
        return
    if batch.expires_at <= timezone.now():
        way = "expired"
    elif job.state == "cancelled":
        way = "cancelled"
        results.set_status(batch.id, CANCELLING)
    else:
        way = "interrupted"
    jobs.submit(
        FINISH_KIND,
        {"batch": batch.id, "way": way},
        project=batch.project,
        created_by="batches",
        parent=job,
        priority=10,
        idempotency_key=f"finish:{batch.id}:{job.fence}",
    )
