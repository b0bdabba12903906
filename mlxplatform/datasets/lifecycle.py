"""A version's state beside its job's: begun, ended with the job, and what a finished one reports."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from mlxplatform.datasets import rowstore
from mlxplatform.datasets.models import DatasetRow, DatasetVersion
from mlxplatform.datasets.rowsource import INDEX
from mlxplatform.datasets.templates.base import CALL_FAILED
from mlxplatform.jobs.models import Job
from mlxplatform.library import local_models
from mlxplatform.rows import chunks

State = DatasetVersion.State


def begin(job: str) -> DatasetVersion:
    """The version to work on. One that failed or was cancelled before is opened again: failed calls get another try."""
    with transaction.atomic():
        version = DatasetVersion.objects.select_related("dataset").get(job=job)
        if version.state in (State.FAILED, State.CANCELLED):
            rows = DatasetRow.objects.filter(version=version)
            # A source that lacks one row is made again as a whole: its other calls are there and cost nothing.
            incomplete = rows.filter(reason__startswith=CALL_FAILED).values_list("source", flat=True).distinct()
            for source in list(incomplete):
                rows.filter(source=source).delete()
            chunks.reopen_failed(job)
            version.state, version.error = State.BUILDING, ""
            version.save(update_fields=["state", "error"])
    return version


def job_ended(job: Job) -> None:
    """The job ended, whoever ended it: a version that is not ready says so, and what it has. Called within that transaction."""
    state = {"failed": State.FAILED, "cancelled": State.CANCELLED}.get(job.state)
    if state is None:
        return
    for version in DatasetVersion.objects.filter(job=job.id, state=State.BUILDING).only("id", "counts"):
        accepted, dropped = rowstore.counts(version.pk)
        if accepted or dropped:
            made = accepted + dropped.total()
            version.counts = {"made": made, "accepted": accepted, "dropped": dict(dropped.most_common())}
        version.state, version.error = state, job.error
        version.save(update_fields=["state", "error", "counts"])


def note_model(version_id: int, model: str) -> None:
    """Record the model that really answers, so that every row's origin is known."""
    found = local_models.find(model)
    with transaction.atomic():
        version = DatasetVersion.objects.select_for_update().get(pk=version_id)
        version.report = {**version.report, "model": model, "model_revision": found.revision if found else None}
        version.save(update_fields=["report"])


def result_of(version: DatasetVersion) -> dict[str, Any]:
    """The job's result."""
    base = f"/api/datasets/{version.dataset_id}"
    return {
        "dataset_id": version.dataset_id,
        "version": version.number,
        "rows": version.counts.get("accepted", 0),
        "n_train": version.counts.get("train", 0),
        "n_valid": version.counts.get("valid", 0),
        "dropped": version.counts.get("dropped", {}),
        "output_format": version.output_format,
        "trainable": version.trainable,
        "notes": version.notes,
        "url": base,
        "files": {name: f"{base}/files/{name}?version={version.number}" for name in version.files if name != INDEX},
    }
