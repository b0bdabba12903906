"""Training data as people know it: datasets by name, version and rows, files by the name they were uploaded with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mlxplatform.console.forms import Choice
from mlxplatform.datasets.models import DatasetVersion
from mlxplatform.files.models import StoredFile

#: Characters of an id that tell two datasets of one name apart.
_TAIL = 6


def choices(versions: Iterable[DatasetVersion]) -> list[Choice]:
    """Versions to train on, in the order given, each with its dataset at hand."""
    found = list(versions)
    same = Counter((version.dataset.name, version.number) for version in found)
    return [
        Choice(f"{version.dataset_id}@{version.number}", _label(version, same[version.dataset.name, version.number] > 1))
        for version in found
    ]


def chosen(given: str, offered: Sequence[str | Choice]) -> str:
    """What a link means: one that names a dataset without a version means the newest, which is offered first."""
    if not given or "@" in given:
        return given
    return next((one.value for one in offered if isinstance(one, Choice) and one.value.startswith(f"{given}@")), given)


def names(sources: Sequence[Mapping[str, Any]]) -> list[str]:
    """How the data of some orders is called: "codes, version 2", "rows.jsonl"; by id where it is gone."""
    datasets = {source["dataset"] for source in sources if "dataset" in source}
    called = dict(DatasetVersion.objects.filter(dataset__in=datasets).values_list("dataset", "dataset__name"))
    files = {source["training_file"] for source in sources if "training_file" in source}
    uploaded = dict(StoredFile.objects.filter(pk__in=files, deleted_at=None).values_list("id", "filename"))
    return [_name(source, called, uploaded) for source in sources]


def _name(source: Mapping[str, Any], called: Mapping[str, str], uploaded: Mapping[str, str]) -> str:
    if "dataset" in source:
        return f"{called.get(source['dataset'], source['dataset'])}, version {source['version']}"
    file = str(source.get("training_file", ""))
    return uploaded.get(file, file)


def _label(version: DatasetVersion, more: bool) -> str:
    train, valid = (version.files.get(name, {}).get("rows", 0) for name in ("train.jsonl", "valid.jsonl"))
    rows = f"{train} rows to learn" + (f", {valid} to validate" if valid else "")
    which = f" (…{version.dataset_id[-_TAIL:]})" if more else ""
    return f"{version.dataset.name}{which}, version {version.number}: {rows}"
