"""Other things of the platform that datasets are made from: earlier datasets, finished batches, conversations.

Reads SQL; always within one project. Raises SourceError with a sentence when there is nothing of that name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlxplatform.batches.models import Batch
from mlxplatform.datasets import rowsource
from mlxplatform.datasets.models import DatasetVersion
from mlxplatform.datasets.templates.base import SourceError
from mlxplatform.inference.contract import decode_request
from mlxplatform.memory.models import Conversation
from mlxplatform.rows.contract import decode_output
from mlxplatform.rows.models import RowCall


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


def batch_exchanges(batch_id: str, project: str) -> Iterator[tuple[str, list[dict[str, Any]], str]]:
    """(key, messages asked, answer) of the succeeded calls of a finished batch, in the order of its lines."""
    batch = Batch.objects.filter(pk=batch_id.strip(), project=project, deleted_at=None).first()
    if batch is None or batch.job_id is None:
        raise SourceError("batch_not_found", f"there is no batch {batch_id[:80]}")
    calls = RowCall.objects.filter(job=batch.job_id, state=RowCall.State.DONE).order_by("ordinal", "id")
    for call in calls.iterator(chunk_size=200):
        request = decode_request(bytes(call.request))
        output = decode_output(bytes(call.output or b""))
        if request.kind == "chat":
            asked = [{"role": message.role, "content": message.content or ""} for message in request.messages]
        elif isinstance(request.prompt, str):
            asked = [{"role": "user", "content": request.prompt}]
        else:
            continue
        yield call.key, asked, output.text


def conversations(project: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(key, messages) of the project's imported conversations."""
    found = Conversation.objects.filter(vault__project=project).order_by("id").prefetch_related("messages")
    for conversation in found.iterator(chunk_size=100):
        yield str(conversation.pk), [{"role": turn.role, "content": turn.text} for turn in conversation.messages.all()]
