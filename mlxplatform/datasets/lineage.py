"""Where a dataset comes from and what was made of it: earlier versions, other datasets, fine-tunes and their adapters."""

from __future__ import annotations

from typing import Any

from mlxplatform.datasets.models import Dataset, DatasetVersion
from mlxplatform.jobs.models import Job
from mlxplatform.training.models import Adapter

#: Fine-tunes and successors listed.
LISTED = 50


def lineage(dataset: Dataset) -> dict[str, Any]:
    """Parents of its versions, versions that continue them, datasets filled from it, and what was trained on it."""
    versions = list(dataset.versions.select_related("parent").defer("inputs").order_by("number"))
    elsewhere = DatasetVersion.objects.filter(
        inputs__dataset_id__startswith=dataset.id, dataset__preview=False, dataset__project=dataset.project
    )
    jobs = Job.objects.filter(config__data__dataset=dataset.id, project=dataset.project).order_by("-created_at")[:LISTED]
    adapters = {adapter.job: adapter for adapter in Adapter.objects.filter(job__in=[job.id for job in jobs])}
    return {
        "origins": _origins(versions, dataset.project),
        "made_from": [_named(version.parent) | {"by": version.number} for version in versions if version.parent],
        "continued_in": [_named(version) for version in elsewhere.order_by("-id")[:LISTED]],
        "trained": [
            {
                "job_id": job.id,
                "state": job.state,
                "version": job.config["data"].get("version"),
                "model": adapters[job.id].name if job.id in adapters else None,
                "adapter": _adapter(adapters[job.id]) if job.id in adapters else None,
            }
            for job in jobs
        ],
    }


def _origins(versions: list[DatasetVersion], project: str) -> list[dict[str, Any]]:
    """The datasets whose rows these versions were made of, as their inputs name them: "ds_…" or "ds_…@2"."""
    found: list[dict[str, Any]] = []
    for version in DatasetVersion.objects.filter(pk__in=[version.pk for version in versions]).order_by("number"):
        name, _, number = str(version.inputs.get("dataset_id") or "").strip().partition("@")
        if not name:
            continue
        numbered = {"number": int(number)} if number.isdecimal() and len(number) < 9 else {"state": DatasetVersion.State.READY}
        given = DatasetVersion.objects.filter(
            dataset=name, dataset__project=project, created_at__lt=version.created_at, **numbered
        )
        origin = given.order_by("-number").first()
        if origin is not None:
            found.append(_named(origin) | {"by": version.number})
    return found


def _adapter(adapter: Adapter) -> dict[str, Any]:
    """What was trained, and how it did on the rows that were held out."""
    return {"id": adapter.id, "base_model": adapter.base_model, "metrics": adapter.metrics, "lineage": adapter.lineage}


def _named(version: DatasetVersion) -> dict[str, Any]:
    return {"dataset_id": version.dataset_id, "version": version.number}
