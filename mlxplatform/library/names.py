"""Names of models to come: free, or taken by a directory or by a job under way.

Names that differ in case only are one name: on most Macs they are one directory.
"""

from __future__ import annotations

from pathlib import Path

from django.conf import settings
from django.db import IntegrityError, transaction

from mlxplatform import paths
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs.models import Job
from mlxplatform.library import local_models
from mlxplatform.library.models import ReservedName
from mlxplatform.library.publication import MAX_ID, is_model_id


def check(name: str, param: str) -> None:
    """
    Raises:
        Refusal: 400 not a name, 409 a model of that name exists.
    """
    if not is_model_id(name):
        allowed = f"at most {MAX_ID} letters, digits, '.', '_', '-', and at most one '/'"
        raise Refusal(400, "invalid_value", f"{param} must be a model name: {allowed}.", param=param)
    root = paths.models_dir(settings.HOME)
    alike = next((model.id for model in local_models.scan(settings.HOME) if model.id.casefold() == name.casefold()), None)
    if alike is None and _exists_in_some_case(root, name):
        alike = name
    if alike is not None:
        raise Refusal(409, "name_taken", f"There is a model called {alike} already.", param=param)
    owner = name.partition("/")[0]
    if owner != name and (root / owner / "config.json").exists():
        raise Refusal(409, "name_taken", f"{owner} is a model, and holds no others.", param=param)


def _exists_in_some_case(root: Path, name: str) -> bool:
    """Whether a directory of that name is there, whole or not."""
    here = [root]
    for part in name.casefold().split("/"):
        here = [entry for folder in here for entry in _entries(folder) if entry.name.casefold() == part]
    return bool(here)


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # there is none, or it is a file
        return []


def reserve(name: str, job_id: str, param: str) -> None:
    """Take a free name for a job; part of the transaction that creates the job. Repeating it is harmless.

    Raises:
        Refusal: 409 another live job is going to publish that name.
    """
    try:
        with transaction.atomic():
            row, made = ReservedName.objects.get_or_create(name=name.casefold(), defaults={"job": job_id})
    except IntegrityError:
        row, made = ReservedName.objects.get(name=name.casefold()), False
    if not made and row.job != job_id:
        raise Refusal(409, "name_taken", f"Another job is making a model called {name}.", param=param)


def job_ended(job: Job) -> None:
    """Free the names of a job that ended; called within the transaction that ends it."""
    ReservedName.objects.filter(job=job.id).delete()
