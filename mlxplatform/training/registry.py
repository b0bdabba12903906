"""The registry of what fine-tuning made: one row per adapter or fully trained model, with base, figures and lineage."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from mlxplatform import paths
from mlxplatform.accounts import audit
from mlxplatform.broker import queues
from mlxplatform.broker.connections import BROKER_ERRORS, sync_client
from mlxplatform.inference.contract import Refusal
from mlxplatform.inference.hub import control
from mlxplatform.inference.models import Host
from mlxplatform.jobs.models import Job
from mlxplatform.library import local_adapters, local_models, publication
from mlxplatform.library.local_adapters import LocalAdapter
from mlxplatform.library.local_models import LocalModel
from mlxplatform.training import finetuning
from mlxplatform.training.models import Adapter

log = structlog.get_logger(__name__)

#: Files every published directory carries: the run's configuration with its outcome, and its curve.
RUN, METRICS = "run.json", "metrics.jsonl"


def keep(job_id: str, project: str, folder: Path) -> dict[str, Any]:
    """Register what a job published; repeating it changes nothing. Answers the job's result."""
    run = json.loads((folder / RUN).read_text())
    order, outcome = run["config"], run["result"]
    full = order["fine_tune_type"] == "full"
    job = Job.objects.filter(pk=job_id).first()
    adapter, _ = Adapter.objects.update_or_create(
        id=finetuning.adapter_id(job_id),
        defaults={
            "project": project,
            "name": order["name"],
            "base_model": order["model"],
            "base_revision": order["revision"],
            "method": order["method"],
            "fine_tune_type": order["fine_tune_type"],
            "model": folder.relative_to(paths.models_dir(settings.HOME)).as_posix() if full else "",
            "job": job_id,
            "config": order,
            "metrics": outcome,
            "lineage": order["lineage"],
            "bytes": outcome["bytes"],
            "created_by": job.created_by if job else "",
        },
    )
    return {**outcome, "adapter": None if full else adapter.id, "model": adapter.model or None, "name": adapter.name}


def visible(project: str | None) -> QuerySet[Adapter]:
    found = Adapter.objects.all()
    return found if project is None else found.filter(project=project)


def find(adapter_id: str, project: str | None, param: str = "adapter") -> Adapter:
    """By id, or by the name requests use.

    Raises:
        Refusal: 404.
    """
    by = "name" if adapter_id.startswith(local_adapters.NAME_PREFIX) else "id"
    adapter = visible(project).filter(**{by: adapter_id}).first()
    if adapter is None:
        raise Refusal(404, "adapter_not_found", "There is no such adapter.", param=param)
    return adapter


@dataclass(frozen=True)
class Chosen:
    """What an order about an adapter means: the run that made it, and its files or those of an earlier step of it.

    ``files`` is None for a fully trained model, which lies in the library.
    """

    adapter: Adapter
    files: LocalAdapter | None

    @property
    def id(self) -> str:
        return self.files.id if self.files is not None else self.adapter.id

    @property
    def asked_as(self) -> str:
        """The name requests use."""
        return (self.files.name if self.files is not None else self.adapter.model) or self.adapter.name

    @property
    def earlier_step(self) -> int:
        """The step of an earlier checkpoint; 0 for a run's result."""
        return self.files.step if self.files is not None and self.files.parent else 0

    @property
    def folder(self) -> Path:
        """
        Raises:
            Refusal: 400 a fully trained model is no adapter.
        """
        if self.files is None:
            raise Refusal(400, "invalid_value", "That is a fully trained model, not an adapter.", param="adapter")
        return self.files.path


def choose(wanted: str, project: str | None, param: str = "adapter") -> Chosen:
    """An adapter, or one step of a run, by id or by the name requests use.

    Raises:
        Refusal: 404 there is none, or its files are gone or not whole.
    """
    by_name = wanted.startswith(local_adapters.NAME_PREFIX)
    local = (local_adapters.find_name if by_name else local_adapters.find)(wanted, settings.HOME)
    owner = visible(project).filter(pk=local.parent or local.id).first() if local is not None else None
    if owner is not None:
        return Chosen(owner, local)
    adapter = find(wanted, project, param)
    if not adapter.model:
        raise Refusal(404, "adapter_incomplete", "The adapter's files are missing or incomplete.", param=param)
    return Chosen(adapter, None)


def base_of(adapter: Adapter) -> LocalModel:
    """
    Raises:
        Refusal: 400 the model it was made for is gone or has changed.
    """
    base = local_models.find(adapter.base_model, settings.HOME)
    if base is None or base.revision != adapter.base_revision:
        said = f"The adapter's base {adapter.base_model} is not here as it was."
        raise Refusal(400, "base_model_missing", said, param="adapter")
    return base


def trained_model(adapter: Adapter) -> LocalModel:
    """The library's model that a full fine-tune made.

    Raises:
        Refusal: 404 it is not here any more.
    """
    model = local_models.find(adapter.model, settings.HOME)
    if model is None:
        raise Refusal(404, "adapter_incomplete", "The fine-tuned model is not here any more.", param="adapter")
    return model


def remove(adapter: Adapter) -> None:
    """Forget an adapter, delete its files and take it out of running engines; a fully trained model stays in the library."""
    root = paths.adapters_dir(settings.HOME)
    gone = adapter.id
    ids = [gone, *(one.id for one in checkpoints(adapter))]
    if not adapter.model and (root / gone).exists():
        publication.remove(root, gone)
    adapter.delete()
    for one in ids:
        _unmount(one)


def checkpoints(adapter: Adapter) -> list[LocalAdapter]:
    """Earlier steps of its run that can still be asked by name, newest first."""
    own = [one for one in local_adapters.scan(settings.HOME) if one.parent == adapter.id]
    return sorted(own, key=lambda one: -one.step)


def find_checkpoint(wanted: str, project: str | None) -> LocalAdapter | None:
    """An earlier step by its id or the name requests use; None for anything else, another project's included."""
    by_name = wanted.startswith(local_adapters.NAME_PREFIX)
    found = (local_adapters.find_name if by_name else local_adapters.find)(wanted, settings.HOME)
    if found is None or not found.parent or not visible(project).filter(pk=found.parent).exists():
        return None
    return found


def delete(wanted: str, project: str | None, actor: str) -> str:
    """Delete an adapter with its checkpoints or, by its own id or name, one earlier checkpoint; answers the id.

    Raises:
        Refusal: 404.
    """
    earlier = find_checkpoint(wanted, project)
    if earlier is not None:
        audit.record(actor, "checkpoint.delete", earlier.id, project=earlier.project, before={"name": earlier.name})
        remove_checkpoint(earlier)
        return earlier.id
    adapter = find(wanted, project)
    gone = adapter.id
    with transaction.atomic():
        audit.record(actor, "adapter.delete", gone, project=adapter.project, before={"name": adapter.name})
        remove(adapter)
    return gone


def remove_checkpoint(checkpoint: LocalAdapter) -> None:
    """Delete one earlier step's files, and take it out of running engines."""
    publication.remove(checkpoint.path.parent, checkpoint.path.name)
    _unmount(checkpoint.id)


def _unmount(adapter_id: str) -> None:
    """Tell every host; one that does not hear it refuses the adapter's name all the same."""
    try:
        for host in Host.objects.values_list("name", flat=True):
            sync_client().rpush(queues.control_key(host), control("unmount", adapter=adapter_id))
    except BROKER_ERRORS as error:
        log.warning("adapter not unmounted", adapter=adapter_id, error=str(error))


def adapter_json(adapter: Adapter) -> dict[str, Any]:
    """What a client sees; :func:`checkpoints` come from the disk and are added where one adapter is shown."""
    parameters = {name: adapter.config.get(name) for name in ("rank", "scale", "lora_dropout", "num_layers")}
    return {
        "id": adapter.id,
        "name": adapter.name,
        "base_model": adapter.base_model,
        "base_revision": adapter.base_revision,
        "method": adapter.method,
        "fine_tune_type": adapter.fine_tune_type,
        "model": adapter.model or None,
        "job_id": adapter.job or None,
        "parents": adapter.parents,
        **parameters,
        "size_bytes": adapter.bytes,
        "metrics": adapter.metrics,
        "lineage": adapter.lineage,
        "created_at": adapter.created_at.isoformat(),
    }
