"""Other things of the platform that datasets are made from: earlier datasets, finished batches, conversations.

Reads SQL; always within one project. Raises SourceError with a sentence when there is nothing of that name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlxplatform.batches.models import Batch
from mlxplatform.datasets import exchanges, rowsource
from mlxplatform.datasets.models import DatasetVersion
from mlxplatform.datasets.templates.base import SourceError
from mlxplatform.files import jsonl
from mlxplatform.files import service as files
from mlxplatform.inference.contract import Refusal
from mlxplatform.memory.models import Conversation


def ready_version(reference: str, project: str) -> DatasetVersion:
    """A ready version by "ds_…" or "ds_…@2"; without a number the newest ready one."""
    dataset, _, number = reference.strip().partition("@")
    versions = DatasetVersion.objects.filter(dataset=dataset, dataset__project=project, state=DatasetVersion.State.READY)
    if number:
        versions = versions.filter(number=int(number)) if number.isdecimal() and len(number) < 9 else versions.none()
    version = versions.order_by("-number").first()
    if version is None:
        raise SourceError("dataset_not_found", f"there is no finished dataset {reference[:80]}")
    return version


def rows_of(reference: str, project: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(place from 1, row) of a ready version."""
    version = ready_version(reference, project)
    yield from enumerate(rowsource.content(version), 1)


def batch_exchanges(batch_id: str, project: str) -> Iterator[tuple[str, list[dict[str, Any]] | None, str | None]]:
    """(custom_id, turns asked, answer) of a batch's answered lines, in the order of its input.

    Turns or answer are None where the line holds something else than text, or did not succeed.
    """
    found = Batch.objects.select_related("input_file", "output_file").filter(
        pk=batch_id.strip(), project=project, deleted_at=None
    )
    batch = found.first()
    if batch is None:
        raise SourceError("batch_not_found", f"there is no batch {batch_id[:80]}")
    if batch.input_file is None or batch.output_file is None or batch.output_file.status != "processed":
        raise SourceError("batch_not_finished", "the batch is not finished, or its files are gone")
    try:
        with files.open_blob(batch.output_file) as output:
            answers = dict(exchanges.outcome(item[1]) for item in jsonl.rows(output) if not isinstance(item, jsonl.BadLine))
        with files.open_blob(batch.input_file) as given:
            for item in jsonl.rows(given):
                if isinstance(item, jsonl.BadLine):
                    continue
                row = item[1]
                key = str(row.get("custom_id"))
                if key in answers:
                    yield key, exchanges.asked(row.get("body") or row.get("params") or {}), answers.pop(key)
    except Refusal as refusal:
        raise SourceError(refusal.code, refusal.message) from None


def conversations(project: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(key, messages) of the project's imported conversations."""
    found = Conversation.objects.filter(vault__project=project).order_by("id").prefetch_related("messages")
    for conversation in found.iterator(chunk_size=100):
        yield str(conversation.pk), [{"role": turn.role, "content": turn.text} for turn in conversation.messages.all()]
