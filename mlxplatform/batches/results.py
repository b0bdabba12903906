"""Outcomes of lines in SQL, and the files made of them: readable while the batch runs, one file when it has ended."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from asgiref.sync import sync_to_async
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from mlxplatform.batches import models
from mlxplatform.batches.models import Batch, BatchLine
from mlxplatform.files import service as files
from mlxplatform.files.models import StoredFile
from mlxplatform.inference.contract import Usage
from mlxplatform.jobs import moves
from mlxplatform.jobs.moves import Holder
from mlxplatform.webhooks import service as webhooks

#: Lines read from SQL at once.
PAGE = 500
#: Anthropic keeps results 29 days.
ANTHROPIC_LIFETIME = dt.timedelta(days=29)

OUTPUT, ERRORS = "output", "error"
NO_USAGE = Usage()


@dataclass(frozen=True)
class Outcome:
    """What became of a line, ready to be written."""

    number: int
    outcome: str
    text: str
    usage: Usage = NO_USAGE


def record(batch_id: str, job_id: str, holder: Holder, outcomes: Sequence[Outcome]) -> Batch:
    """Write outcomes and counts in one transaction, if the job is still this holder's.

    A line that already has an outcome keeps it (a repeated line is not counted again).

    Raises:
        MoveRefused: somebody else holds the job now.
    """
    with transaction.atomic():
        moves.check_held(job_id, holder)
        batch = Batch.objects.select_for_update(of=("self",)).get(pk=batch_id)
        numbers = [one.number for one in outcomes]
        present = set(BatchLine.objects.filter(batch=batch, number__in=numbers).values_list("number", flat=True))
        fresh = [one for one in outcomes if one.number not in present]
        BatchLine.objects.bulk_create(
            [BatchLine(batch=batch, number=one.number, outcome=one.outcome, text=one.text) for one in fresh], batch_size=200
        )
        for one in fresh:
            setattr(batch, one.outcome, getattr(batch, one.outcome) + 1)
            batch.prompt_tokens += one.usage.prompt
            batch.cached_tokens += one.usage.cached
            batch.completion_tokens += one.usage.completion
            batch.reasoning_tokens += one.usage.reasoning
        _announce_files(batch)
        batch.save()
    return batch


def _announce_files(batch: Batch) -> None:
    """Give the output and error files an id as soon as there is a line to read in them."""
    if batch.succeeded and batch.output_file is None:
        batch.output_file = _announce(batch, OUTPUT)
    if batch.dialect == "openai" and batch.finished_lines > batch.succeeded and batch.error_file is None:
        batch.error_file = _announce(batch, ERRORS)
    if batch.dialect == "anthropic" and batch.finished_lines and batch.output_file is None:
        batch.output_file = _announce(batch, OUTPUT)


def _announce(batch: Batch, which: str) -> StoredFile:
    lifetime = dt.timedelta(seconds=batch.output_seconds) if batch.output_seconds else None
    if batch.dialect == "anthropic":
        lifetime = ANTHROPIC_LIFETIME
    return files.announce(
        f"{batch.id}_{which}.jsonl",
        "batch_output",
        f"batch:{batch.id}:{which}",
        project=batch.project,
        created_by=batch.created_by,
        expires_at=timezone.now() + lifetime if lifetime else None,
    )


def lines_of(batch_id: str, which: str) -> QuerySet[BatchLine]:
    """Outcomes that belong into one of the files, in the order in which they were written."""
    found = BatchLine.objects.filter(batch_id=batch_id)
    batch = Batch.objects.only("dialect").get(pk=batch_id)
    if batch.dialect == "anthropic":
        return found.order_by("id")
    succeeded = found.filter(outcome=BatchLine.SUCCEEDED)
    return (succeeded if which == OUTPUT else found.exclude(outcome=BatchLine.SUCCEEDED)).order_by("id")


def _pieces(batch_id: str, which: str, after: int = 0) -> Iterator[tuple[int, bytes]]:
    """(id of the last line, bytes) by pages."""
    while True:
        page = list(lines_of(batch_id, which).filter(id__gt=after).values_list("id", "text")[:PAGE])
        if not page:
            return
        after = page[-1][0]
        yield after, "".join(f"{text}\n" for _, text in page).encode()


async def live(file: StoredFile) -> AsyncIterator[bytes]:
    """What a file holds so far, for a reader who comes while the batch runs."""
    _, batch_id, which = file.producer.split(":")
    after = 0
    while True:
        piece = await sync_to_async(lambda: next(_pieces(batch_id, which, after), None))()  # noqa: B023  awaited at once
        if piece is None:
            return
        after, content = piece
        yield content


def complete_files(batch: Batch) -> None:
    """Write the final files. Repeatable: after a crash the same bytes replace what there was."""
    for file, which in ((batch.output_file, OUTPUT), (batch.error_file, ERRORS)):
        if file is not None and file.producer:
            files.complete(file, (content for _, content in _pieces(batch.id, which)))


def forget_lines(batch: Batch) -> None:
    """The files hold everything now; free the rows in slices, so that no writer waits long."""
    while ids := list(BatchLine.objects.filter(batch=batch).values_list("id", flat=True)[:2000]):
        BatchLine.objects.filter(id__in=ids).delete()


def finished_numbers(batch_id: str) -> set[int]:
    return set(BatchLine.objects.filter(batch_id=batch_id).values_list("number", flat=True).iterator(chunk_size=5000))


def set_status(batch_id: str, status: str, **fields: object) -> Batch:
    """Move a batch on; a move its table does not allow leaves it as it is."""
    with transaction.atomic():
        batch = Batch.objects.select_related("input_file").select_for_update(of=("self",)).get(pk=batch_id)
        if status in models.MOVES[batch.status]:
            batch.status = status
            setattr(batch, f"{status}_at", timezone.now())
            for name, value in fields.items():
                setattr(batch, name, value)
            batch.save()
            if status in models.ENDED:
                webhooks.emit(f"batch.{status}", batch.id, batch.project, job=batch.job_id or "")
    return batch


def set_forecast(batch_id: str, forecast: dict[str, object] | None) -> None:
    Batch.objects.filter(pk=batch_id).update(forecast=forecast)


def held_inputs(file_ids: list[str]) -> set[str]:
    """Input files that running batches still read."""
    running = Batch.objects.filter(input_file_id__in=file_ids).exclude(status__in=models.ENDED)
    return {str(file_id) for file_id in running.values_list("input_file_id", flat=True)}
