"""Training data by id: a dataset's version or uploaded files, found for the runner and looked through beforehand.

Files are checked twice by the same rules: when work is ordered, and when it begins, which may be days later. Between
the two a file can be deleted, expire, or lose its bytes to somebody at the disk.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from mlxplatform.datasets import publish
from mlxplatform.datasets.models import Dataset, DatasetVersion
from mlxplatform.files import blobs, jsonl, service
from mlxplatform.files.models import StoredFile
from mlxplatform.http.fields import invalid
from mlxplatform.inference.contract import Refusal
from mlxplatform.training import rows

#: The purpose an uploaded training file must have.
PURPOSE = "fine-tune"
#: What an order may name besides a dataset.
FILES = ("training_file", "validation_file")


def choose(order: dict[str, Any], project: str | None) -> dict[str, Any]:
    """Which data an order means, by ids: ``{"dataset", "version"}`` or ``{"training_file", "validation_file"}``.

    Raises:
        Refusal: neither or both named, unknown ids, or data that is not for training.
    """
    if (order["dataset"] is None) == (order["training_file"] is None):
        name = "dataset" if order["dataset"] is None else "training_file"
        code = "missing_required_parameter" if order["dataset"] is None else "invalid_value"
        raise Refusal(400, code, "Name one source of data: dataset or training_file.", param=name)
    if order["dataset"] is not None:
        if order["validation_file"] is not None:
            raise invalid("validation_file", "A dataset brings its own validation rows; leave validation_file out.")
        version = _version(order["dataset"], project)
        return {"dataset": version.dataset_id, "version": version.number}
    return {name: file(order[name], project, name).id for name in FILES if order[name] is not None}


def file(file_id: str, project: str | None, param: str) -> StoredFile:
    """An uploaded file of rows; ``project`` None: of any project.

    Raises:
        Refusal: unknown, deleted, expired or another project's; not for training; not complete.
    """
    found = service.find(file_id, project, param=param)
    if found.purpose != PURPOSE:
        message = f"{param} has the purpose {found.purpose}; it must be {PURPOSE}."
        raise Refusal(400, "invalid_file_purpose", message, param=param)
    if found.status != "processed":
        raise invalid(param, f"{param} is not complete yet.")
    return found


def paths(chosen: dict[str, Any], *, begun: bool = False, param: str = "") -> tuple[Path, Path | None]:
    """(training rows, validation rows) on this machine, as they were stored.

    ``begun`` says that work on them has begun: it goes on with what was deleted since, whose bytes stay for it.
    ``param`` is what the order calls its source, where that is not by the source's own name.

    Raises:
        Refusal: the data is gone, or is not what was stored.
    """
    if "dataset" in chosen:
        return _version_paths(chosen, param or "dataset")
    train = _stored(chosen["training_file"], param or "training_file", begun)
    validation = chosen.get("validation_file")
    return train, _stored(validation, param or "validation_file", begun) if validation else None


def inspect(chosen: dict[str, Any], formats: tuple[str, ...], *, param: str = "") -> dict[str, Any]:
    """What the data holds: counts, format, problems, rows that are in both parts.

    Raises:
        Refusal: nothing usable in it.
    """
    train_path, valid_path = paths(chosen, param=param)
    param = param or ("dataset" if "dataset" in chosen else "training_file")
    train = _look(train_path, formats, param)
    found: dict[str, Any] = {"train": train.describe(), "valid": None, "in_both": 0, "warnings": []}
    if not train.rows:
        reason = f": {train.problems[0]}" if train.problems else ""
        code, what = ("invalid_file", "The file") if param == "file" else ("invalid_training_file", "The training data")
        raise Refusal(400, code, f"{what} has no usable row{reason}.", param=param)
    if valid_path is not None:
        param = param if param == "dataset" else "validation_file"
        valid = _look(valid_path, formats, param)
        if not valid.rows and param == "validation_file":
            reason = f": {valid.problems[0]}" if valid.problems else ""
            raise Refusal(400, "invalid_validation_file", f"The validation data has no usable row{reason}.", param=param)
        found["valid"], found["in_both"] = valid.describe(), len(train.digests & valid.digests)
    found["warnings"] = _warnings(found)
    return found


def lineage(chosen: dict[str, Any]) -> dict[str, Any]:
    """Ids and checksums of the data, for the record of what it made."""
    if "dataset" in chosen:
        version = DatasetVersion.objects.filter(dataset=chosen["dataset"], number=chosen["version"]).first()
        files = {name: info.get("sha256") for name, info in version.files.items()} if version else {}
        return {"dataset": chosen["dataset"], "version": chosen["version"], "sha256": files}
    ids = [value for value in (chosen["training_file"], chosen.get("validation_file")) if value]
    return {"files": dict(StoredFile.objects.filter(pk__in=ids).values_list("id", "sha256"))}


def held_files(ids: list[str]) -> set[str]:
    """Which of these files live work still needs: one that has begun goes on when its file is deleted."""
    from mlxplatform.jobs.models import Job
    from mlxplatform.jobs.states import TERMINAL

    live = (
        Job.objects.filter(kind__in=("finetune", "evaluate_adapter"))
        .exclude(state__in=TERMINAL)
        .values_list("config__data", flat=True)
    )
    used = {value for chosen in live for name, value in (chosen or {}).items() if name.endswith("_file")}
    return used & set(ids)


def _version(raw: str, project: str | None) -> DatasetVersion:
    dataset_id, _, number = raw.partition("@")
    datasets = Dataset.objects.filter(pk=dataset_id)
    dataset = (datasets if project is None else datasets.filter(project=project)).first()
    if dataset is None:
        raise Refusal(404, "dataset_not_found", "There is no such dataset.", param="dataset")
    ready = dataset.versions.filter(state=DatasetVersion.State.READY).order_by("-number")
    if number:
        if not number.removeprefix("v").isdecimal() or len(number) > 9:
            raise invalid("dataset", "A version is a number: dataset@2.")
        ready = ready.filter(number=int(number.removeprefix("v")))
    version = ready.first()
    if version is None:
        raise invalid("dataset", "The dataset has no finished version.")
    if not version.trainable:
        raise invalid("dataset", "This dataset holds prompts without answers; fill the answers in first.")
    return version


def _version_paths(chosen: dict[str, Any], param: str) -> tuple[Path, Path | None]:
    ready = DatasetVersion.objects.filter(state=DatasetVersion.State.READY)
    version = ready.filter(dataset=chosen["dataset"], number=chosen["version"]).first()
    if version is None:
        raise Refusal(404, "dataset_not_found", "The dataset is not there any more.", param=param)
    found = []
    for name in ("train.jsonl", "valid.jsonl"):
        stored = version.files.get(name, {})
        path = publish.path_of(version.location, name)
        needed = name == "train.jsonl" or stored.get("rows", 0) > 0
        found.append(_whole(path, stored.get("bytes"), stored.get("sha256"), param) if needed else None)
    train, valid = found
    assert train is not None
    return train, valid


def _stored(file_id: str, param: str, begun: bool) -> Path:
    """An uploaded file's bytes.

    Raises:
        Refusal: deleted or expired since it was chosen, unless work had begun; or its bytes are gone or others.
    """
    row = StoredFile.objects.filter(pk=file_id).first() if begun else file(file_id, None, param)
    if row is None:
        raise _missing(param)
    return _whole(blobs.path_of(file_id), row.bytes, row.sha256, param)


def _whole(path: Path, size: int | None, sha256: str | None, param: str) -> Path:
    """The path, if its content is what was stored: what a run says it learned from must be true."""
    try:
        with path.open("rb") as content:
            same = path.stat().st_size == size and hashlib.file_digest(content, "sha256").hexdigest() == sha256
    except OSError:
        raise _missing(param) from None
    if not same:
        message = f"The content of {param} on the server's disk is not what was stored; upload or make it again."
        raise Refusal(400, "file_content_damaged", message, param=param)
    return path


def _missing(param: str) -> Refusal:
    return Refusal(404, "file_not_found", f"The content of {param} is not here any more.", param=param)


def _look(path: Path, formats: tuple[str, ...], param: str) -> rows.Inspection:
    """
    Raises:
        Refusal: not JSON Lines as a whole, or a line that is no JSON: whoever wrote it meant a row.
    """
    try:
        seen = rows.inspect(path, formats)
    except jsonl.NotLines as problem:
        raise Refusal(400, "invalid_file_format", problem.message, param=param) from None
    except OSError:
        raise _missing(param) from None
    if seen.broken:
        listed = "; ".join(seen.broken_lines)
        more = f"; and {seen.broken - len(seen.broken_lines)} more" if seen.broken > len(seen.broken_lines) else ""
        counted = "1 line is no JSON object" if seen.broken == 1 else f"{seen.broken} lines are not JSON objects"
        message = f"{counted}: {listed}{more}"
        raise Refusal(400, "invalid_file_format", message, param=param)
    return seen


def _warnings(found: dict[str, Any]) -> list[str]:
    train, valid = found["train"], found["valid"]
    said = []
    if train["bad_rows"]:
        said.append(f"{train['bad_rows']} training rows cannot be used.")
    if train["duplicates"]:
        said.append(f"{train['duplicates']} training rows occur more than once.")
    if train["rows"] < 10:
        said.append(f"Only {train['rows']} training rows: the model will learn them by heart.")
    if valid is None or not valid["rows"]:
        said.append("There is no validation data: over-fitting cannot be seen.")
    elif found["in_both"]:
        said.append(f"{found['in_both']} validation rows are training rows too: the validation loss will look too good.")
    return said
