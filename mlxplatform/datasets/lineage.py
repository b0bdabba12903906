"""Where a dataset comes from and what was made of it: batches, earlier versions, other datasets, fine-tunes, what they gave
and how that was measured."""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from django.db.models.fields.json import KT

from mlxplatform.batches.models import Batch
from mlxplatform.datasets.models import Dataset, DatasetVersion
from mlxplatform.jobs.models import Job
from mlxplatform.training import evaluation, finetuning
from mlxplatform.training.models import Adapter

#: Fine-tunes, evaluations and successors listed.
LISTED = 50


def lineage(dataset: Dataset) -> dict[str, Any]:
    """What its versions were made from, versions that continue them, datasets filled from it, what was trained and measured."""
    # Inputs may be whole documents: only the two that name something else are read.
    named = {"from_dataset": KT("inputs__dataset_id"), "from_batch": KT("inputs__batch_id")}
    versions = list(
        dataset.versions.select_related("parent").defer("inputs", "parent__inputs").annotate(**named).order_by("number")
    )
    elsewhere = DatasetVersion.objects.filter(
        inputs__dataset_id__startswith=dataset.id, dataset__preview=False, dataset__project=dataset.project
    )
    tunes = _jobs(dataset, finetuning.KIND, Q(config__data__dataset=dataset.id))
    adapters = {adapter.job: adapter for adapter in Adapter.objects.filter(job__in=[job.id for job in tunes])}
    names = [adapter.id for adapter in adapters.values()]
    about = Q(config__data__dataset=dataset.id) | Q(config__adapter__in=names)
    return {
        "origins": _origins(versions, dataset.project),
        "batches": _batches(versions, dataset.project),
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
            for job in tunes
        ],
        "evaluated": [_evaluation(job) for job in _jobs(dataset, evaluation.KIND, about)],
    }


def _jobs(dataset: Dataset, kind: str, about: Q) -> list[Job]:
    return list(Job.objects.filter(about, kind=kind, project=dataset.project).order_by("-created_at", "-id")[:LISTED])


def _origins(versions: list[Any], project: str) -> list[dict[str, Any]]:
    """The datasets whose rows these versions were made of, as their inputs name them: "ds_…" or "ds_…@2"."""
    found: list[dict[str, Any]] = []
    for version in versions:
        name, _, number = str(version.from_dataset or "").strip().partition("@")
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


def _batches(versions: list[Any], project: str) -> list[dict[str, Any]]:
    """The batches whose answers these versions hold."""
    named = {version.number: str(version.from_batch or "").strip() for version in versions}
    known = {batch.pk: batch for batch in Batch.objects.filter(pk__in=[*named.values()], project=project)}
    return [{"batch_id": name, "job_id": known[name].job_id, "by": number} for number, name in named.items() if name in known]


def _adapter(adapter: Adapter) -> dict[str, Any]:
    """What was trained, and how it did on the rows that were held out."""
    return {"id": adapter.id, "base_model": adapter.base_model, "metrics": adapter.metrics, "lineage": adapter.lineage}


def _evaluation(job: Job) -> dict[str, Any]:
    """What was measured, of which adapter and on which rows; the figures without the answers they come from."""
    result = job.result or {}
    return {
        "job_id": job.id,
        "state": job.state,
        "adapter": job.config["adapter"],
        "name": result.get("name"),
        "data": job.config["data"],
        "part": job.config["part"],
        "figures": {name: result[name] for name in evaluation.MEASURES if name in result},
    }


def _named(version: DatasetVersion) -> dict[str, Any]:
    return {"dataset_id": version.dataset_id, "version": version.number}
