"""Deleting data: everything a project has, or everything that one key or person made in it.

What belongs to a project is found by asking the models, not by a list kept here: a table with a ``project`` column is
emptied of it. What somebody made is told by :data:`MAKERS`; a test holds it against the tables. Kept are the keys (or the
caller could not ask twice), the people, and the audit log, which says that the data was deleted and by whom. Safe to
repeat: a process that dies half-way leaves less, never something wrong.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core.files.storage import default_storage
from django.db import models
from django.db.models import F, Q, QuerySet

from mlxplatform.accounts import audit, usage
from mlxplatform.accounts.actors import SCHEDULE, key_of
from mlxplatform.accounts.models import ApiKey, AuditEntry, Person, UsageDay
from mlxplatform.datasets.models import Dataset, HubToken
from mlxplatform.datasets.publish import ROOT as DATASETS
from mlxplatform.files import blobs
from mlxplatform.files.models import StoredFile, Upload, UploadPart
from mlxplatform.inference import request_log
from mlxplatform.inference.contract import Refusal
from mlxplatform.inference.models import FinishedRequest, StoredAnswer
from mlxplatform.jobs import service as jobs
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.states import TERMINAL
from mlxplatform.memory.models import Vault
from mlxplatform.memory.vault import Wiki
from mlxplatform.rows.models import RowCall, RowChunk
from mlxplatform.schedules.models import Schedule
from mlxplatform.training import registry
from mlxplatform.training.models import Adapter, QualityReport, TrainingRun
from mlxplatform.webhooks.models import Webhook

#: Who asks, what they may do and what was done outlive the data.
KEPT: tuple[type[models.Model], ...] = (ApiKey, Person, AuditEntry)
#: The column that says who made a row, where it is not ``created_by``; "" for what the whole project made together, which
#: only goes with the project: the ledger of usage, which limits and bills, and the memory's vaults.
MAKERS: dict[type[models.Model], str] = {
    HubToken: "set_by",
    FinishedRequest: "key_id",
    QualityReport: "job__in",
    TrainingRun: "job__in",
    UsageDay: "",
    Vault: "",
}
#: Tables that tell which rows of others are somebody's; deleted in this order, after the others.
_FOUND_BY: tuple[type[models.Model], ...] = (StoredAnswer, Job, Schedule)
#: Rows deleted in one transaction: writers must never wait long.
_SLICE = 500


@dataclass(frozen=True)
class Extent:
    """What is meant: a project's data, or of it only what ``maker`` ("key:<id>" or "user:<name>") made."""

    project: str
    maker: str = ""

    @cached_property
    def schedules(self) -> Q:
        """What the maker's schedules started: those there are, and, of a key, those that are gone."""
        own = Schedule.objects.filter(project=self.project, created_by=self.maker)
        started = Q(created_by__in=[f"{SCHEDULE}{pk}" for pk in own.values_list("pk", flat=True)])
        if self.key_id:
            started |= Q(created_by__startswith=SCHEDULE, created_by__endswith=f"/{self.maker}")
        return started

    @property
    def key_id(self) -> str:
        return key_of(self.maker)

    def rows(self, model: type[models.Model]) -> QuerySet[Any]:
        found = model._default_manager.filter(project=self.project)
        if not self.maker:
            return found
        column = MAKERS.get(model, "created_by")
        if column == "job__in":
            return found.filter(job__in=self.rows(Job).values("pk"))
        if model is FinishedRequest:
            # A person's requests carry no key: those that were stored are known by their answers.
            return found.filter(key_id=self.key_id) if self.key_id else found.filter(pk__in=self.rows(StoredAnswer).values("pk"))
        if not column:
            return found.none()
        made = Q(**{column: self.maker})
        if column == "created_by":
            made |= self.schedules
        if model is Job:
            made |= Q(parent__created_by=self.maker)  # what their jobs started
        return found.filter(made)

    def tables(self) -> Iterator[QuerySet[Any]]:
        """Rows by table; those by which others are found come last."""
        named = [model for model in apps.get_models() if _is_owned(model)]
        for model in sorted(named, key=lambda model: _FOUND_BY.index(model) if model in _FOUND_BY else -1):
            yield self.rows(model)


def _is_owned(model: type[models.Model]) -> bool:
    named = any(field.name == "project" for field in model._meta.fields)
    return named and model not in KEPT and model._meta.app_config.name.startswith("mlxplatform.")


def holdings(project: str, maker: str = "") -> dict[str, int]:
    """How many rows each table has, without those that have none."""
    return _counted(Extent(project, maker))


def _counted(extent: Extent) -> dict[str, int]:
    counts = {_plural(rows.model): rows.count() for rows in extent.tables()}
    return {name: count for name, count in sorted(counts.items()) if count}


def _plural(model: type[models.Model]) -> str:
    """What many of them are called. Django only adds an s."""
    name = str(model._meta.verbose_name_plural)
    return name.removesuffix("chs") + "ches" if name.endswith("chs") else name


def erase(project: str, *, actor: str, maker: str = "") -> dict[str, int]:
    """Delete all data of ``project``, or what ``maker`` made of it; answers what there was.

    Raises:
        Refusal: 409 while jobs of it still run; they were told to stop.
    """
    extent = Extent(project, maker)
    extent.rows(Schedule).update(paused=True)
    extent.rows(Webhook).delete()
    _stop_jobs(extent, actor)
    request_log.flush()
    usage.flush()
    had = _counted(extent)
    _erase_files(extent)
    for ids in _slices(extent.rows(Job).values_list("pk", flat=True)):
        RowCall.objects.filter(job__in=ids).delete()
        RowChunk.objects.filter(job__in=ids).delete()
    _forget_requests(extent)
    for rows in extent.tables():
        # A job's children first: they are found by their parents.
        _delete(rows.order_by(F("parent").desc(nulls_last=True)) if rows.model is Job else rows)
    audit.record(actor, "data.erase", maker or project, project=project, before=had)
    return had


def _stop_jobs(extent: Extent, actor: str) -> None:
    live = extent.rows(Job).exclude(state__in=TERMINAL)
    for job_id in list(live.values_list("id", flat=True)):
        try:
            jobs.cancel(job_id, by=actor)
        except Refusal:
            continue  # it ended meanwhile
    running = live.count()
    if running:
        message = f"{running} of these jobs still stop; nothing is deleted yet. Ask again in a moment."
        raise Refusal(409, "jobs_running", message, retry_after=2)


def _forget_requests(extent: Extent) -> None:
    """Through the log's own door: what waits to be written goes too, and the memory hears of it."""
    if not extent.maker:
        request_log.forget(extent.project)
    elif extent.key_id:
        request_log.forget(extent.project, key_id=extent.key_id)
    else:
        for request_id in list(extent.rows(FinishedRequest).values_list("pk", flat=True)):
            request_log.forget(extent.project, request_id=request_id)


def _erase_files(extent: Extent) -> None:
    for file_id in extent.rows(StoredFile).values_list("pk", flat=True):
        blobs.remove(file_id)
    for part_id in UploadPart.objects.filter(upload__in=extent.rows(Upload)).values_list("pk", flat=True):
        blobs.remove(part_id)
    for dataset_id in extent.rows(Dataset).values_list("pk", flat=True):
        shutil.rmtree(default_storage.path(f"{DATASETS}/{dataset_id}"), ignore_errors=True)
    for adapter in extent.rows(Adapter):
        registry.remove(adapter)
    for vault in extent.rows(Vault):
        root = Path(Wiki.of(vault).root)
        shutil.rmtree(root, ignore_errors=True)
        for lock in root.parent.glob(f".{root.name}.*.lock"):
            lock.unlink(missing_ok=True)


def _delete(rows: QuerySet[models.Model]) -> None:
    while ids := list(rows.values_list("pk", flat=True)[:_SLICE]):
        rows.model._default_manager.filter(pk__in=ids).delete()


def _slices(ids: QuerySet[models.Model, str]) -> Iterator[list[str]]:
    everything = list(ids)
    for start in range(0, len(everything), _SLICE):
        yield everything[start : start + _SLICE]
