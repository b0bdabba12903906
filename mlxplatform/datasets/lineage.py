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
    elsewhere = DatasetVersion.objects.filter(inputs__dataset_id__startswith=dataset.id, dataset__preview=False)
    jobs = Job.objects.filter(config__data__dataset=dataset.id, project=dataset.project).order_by("-created_at")[:LISTED]
    adapters = {adapter.job: adapter for adapter in Adapter.objects.filter(job__in=[job.id for job in jobs])}
    return {
        "made_from": [_named(version.parent) | {"by": version.number} for version in versions if version.parent],
        "continued_in": [_named(version) for version in elsewhere.order_by("-id")[:LISTED]],
        "trained": [
            {
                "job_id": job.id,
                "state": job.state,
                "version": job.config["data"].get("version"),
                "model": adapters[job.id].name if job.id in adapters else None,
            }
            for job in jobs
        ],
    }


def _named(version: DatasetVersion) -> dict[str, Any]:
    return {"dataset_id": version.dataset_id, "version": version.number}
