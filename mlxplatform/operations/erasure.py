"""Deleting everything a project has: its rows in every table that names a project, and its files on the disk.

What belongs to a project is found by asking the models, not by a list kept here: a table with a ``project`` column is
emptied of it. Kept are the keys (or the caller could not ask twice), the people, and the audit log, which says that the
data was deleted and by whom. Safe to repeat: a process that dies half-way leaves less, never something wrong.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from django.apps import apps
from django.core.files.storage import default_storage
from django.db import models
from django.db.models import QuerySet

from mlxplatform.accounts import audit
from mlxplatform.accounts.models import ApiKey, AuditEntry, Person
from mlxplatform.datasets.models import Dataset
from mlxplatform.datasets.publish import ROOT as DATASETS
from mlxplatform.files import blobs
from mlxplatform.files.models import StoredFile, UploadPart
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import service as jobs
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.states import TERMINAL
from mlxplatform.memory.models import Vault
from mlxplatform.memory.vault import Wiki
from mlxplatform.rows.models import RowCall, RowChunk
from mlxplatform.schedules.models import Schedule
from mlxplatform.training import registry
from mlxplatform.training.models import Adapter
from mlxplatform.webhooks.models import Webhook

#: Who asks, what they may do and what was done outlive the data.
KEPT: tuple[type[models.Model], ...] = (ApiKey, Person, AuditEntry)
#: Rows deleted in one transaction: writers must never wait long.
_SLICE = 500


def holdings(project: str) -> dict[str, int]:
    """How many rows each table has of a project, without those that have none."""
    counts = {str(rows.model._meta.verbose_name_plural): rows.count() for rows in _tables(project)}
    return {name: count for name, count in sorted(counts.items()) if count}


def erase(project: str, *, actor: str) -> dict[str, int]:
    """Delete all data of ``project``; answers what there was.

    Raises:
        Refusal: 409 while jobs of it still run; they were told to stop.
    """
    Schedule.objects.filter(project=project).delete()
    Webhook.objects.filter(project=project).delete()
    _stop_jobs(project, actor)
    had = holdings(project)
    _erase_files(project)
    for ids in _slices(Job.objects.filter(project=project).values_list("pk", flat=True)):
        RowCall.objects.filter(job__in=ids).delete()
        RowChunk.objects.filter(job__in=ids).delete()
    for rows in _tables(project):
        _delete(rows)
    audit.record(actor, "data.erase", project, project=project, before=had)
    return had


def _stop_jobs(project: str, actor: str) -> None:
    live = Job.objects.filter(project=project).exclude(state__in=TERMINAL)
    for job_id in list(live.values_list("id", flat=True)):
        try:
            jobs.cancel(job_id, by=actor)
        except Refusal:
            continue  # it ended meanwhile
    running = live.count()
    if running:
        message = f"{running} of the project's jobs still stop; nothing is deleted yet. Ask again in a moment."
        raise Refusal(409, "jobs_running", message, retry_after=2)


def _erase_files(project: str) -> None:
    for file_id in StoredFile.objects.filter(project=project).values_list("pk", flat=True):
        blobs.remove(file_id)
    for part_id in UploadPart.objects.filter(upload__project=project).values_list("pk", flat=True):
        blobs.remove(part_id)
    for dataset_id in Dataset.objects.filter(project=project).values_list("pk", flat=True):
        shutil.rmtree(default_storage.path(f"{DATASETS}/{dataset_id}"), ignore_errors=True)
    for adapter in Adapter.objects.filter(project=project):
        registry.remove(adapter)
    for vault in Vault.objects.filter(project=project):
        root = Path(Wiki.of(vault).root)
        shutil.rmtree(root, ignore_errors=True)
        for lock in root.parent.glob(f".{root.name}.*.lock"):
            lock.unlink(missing_ok=True)


def _tables(project: str) -> Iterator[QuerySet[models.Model]]:
    for model in apps.get_models():
        named = any(field.name == "project" for field in model._meta.fields)
        if named and model not in KEPT and model._meta.app_config.name.startswith("mlxplatform."):
            yield model._default_manager.filter(project=project)


def _delete(rows: QuerySet[models.Model]) -> None:
    while ids := list(rows.values_list("pk", flat=True)[:_SLICE]):
        rows.model._default_manager.filter(pk__in=ids).delete()


def _slices(ids: QuerySet[models.Model, str]) -> Iterator[list[str]]:
    everything = list(ids)
    for start in range(0, len(everything), _SLICE):
        yield everything[start : start + _SLICE]
