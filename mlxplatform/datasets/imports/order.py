"""What somebody asks to import, checked, and the job that will do it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec
from django.db import transaction

from mlxplatform.accounts import audit
from mlxplatform.datasets import roots
from mlxplatform.datasets.imports.opening import FORMATS
from mlxplatform.datasets.inputs import bad, refuse_nul
from mlxplatform.datasets.models import Dataset, DatasetVersion
from mlxplatform.datasets.submit import parse_tags
from mlxplatform.files import service as files
from mlxplatform.files.models import StoredFile
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import service
from mlxplatform.jobs.models import Job

KIND = "dataset_import"
FIELDS = (
    "file_id",
    "path",
    "hub",
    "revision",
    "name",
    "description",
    "tags",
    "format",
    "columns",
    "on_bad_rows",
    "valid_fraction",
    "distinct",
    "near_duplicates",
)
#: A data set's name; the oldest ones have no owner.
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(?:/[A-Za-z0-9][\w.-]{0,95})?")
#: Which of the names make a row: those it needs, and those it may have beside them.
TOGETHER: tuple[tuple[frozenset[str], frozenset[str]], ...] = tuple(
    (frozenset(needed), frozenset(beside))
    for needed, beside in (
        (("user", "assistant"), ("system",)),
        (("prompt", "completion"), ()),
        (("chosen", "rejected"), ("prompt",)),
        (("text",), ()),
    )
)
TARGETS = ("user", "assistant", "system", "prompt", "completion", "chosen", "rejected", "text")


class ImportOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """``source`` is file, path or hub; ``columns`` maps our names to the source's."""

    source: str
    reference: str
    filename: str = ""
    format: str = "auto"
    columns: dict[str, str] = {}
    on_bad_rows: str = "refuse"
    valid_fraction: float = 0.1
    distinct: bool = False
    near_duplicates: float | None = None
    revision: str = ""


@dataclass(frozen=True)
class ImportOrder:
    options: ImportOptions
    name: str
    description: str
    tags: list[str]


def check(body: dict[str, Any], project: str) -> ImportOrder:
    """Raises Refusal naming the field."""
    for name in body:
        if name not in FIELDS:
            raise Refusal(400, "unknown_field", f"{name} is not a field; the fields are {', '.join(FIELDS)}", param=name)
    refuse_nul(body)
    named = [name for name in ("file_id", "path", "hub") if body.get(name) is not None]
    if len(named) != 1:
        raise Refusal(400, "missing_field", "name exactly one source: file_id, path or hub", param="file_id")
    source = named[0]
    reference = body[source]
    if not isinstance(reference, str) or not reference or len(reference) > 1000:
        raise bad(source, f"{source} must be text")
    if source == "hub" and not _HUB_NAME.fullmatch(reference):
        raise bad("hub", "hub must be the name of a data set on the hub: owner/name, of letters, digits, - _ .")
    filename = _filename(source, reference, project)
    form = _choice(body, "format", FORMATS)
    options = ImportOptions(
        source={"file_id": "file"}.get(source, source),
        reference=reference,
        filename=filename,
        format=form,
        columns=_columns(body.get("columns")),
        on_bad_rows=_choice(body, "on_bad_rows", ("refuse", "skip")),
        valid_fraction=_fraction(body, "valid_fraction", 0.0, 0.5, 0.1),
        distinct=_flag(body, "distinct"),
        near_duplicates=_fraction(body, "near_duplicates", 0.3, 1.0, None),
        revision=_text(body, "revision", 200),
    )
    default = filename.rpartition("/")[2] or reference.rstrip("/").rpartition("/")[2]
    return ImportOrder(
        options, _text(body, "name", 200) or default[:200], _text(body, "description", 10_000), parse_tags(body.get("tags"))
    )


def _filename(source: str, reference: str, project: str) -> str:
    if source == "file_id":
        return files.find(reference, project).filename
    if source == "path":
        try:
            found = roots.entry_in_roots(reference)
        except roots.UnknownFolder as error:
            raise Refusal(404, "path_not_found", str(error), param="path") from None
        return found.name
    return ""


def _text(body: dict[str, Any], name: str, longest: int) -> str:
    raw = body.get(name)
    if raw is None:
        return ""
    if not isinstance(raw, str) or len(raw) > longest:
        raise bad(name, f"{name} must be text of at most {longest} characters")
    return raw.strip()


def _choice(body: dict[str, Any], name: str, allowed: tuple[str, ...]) -> str:
    raw = body.get(name, allowed[0])
    if raw not in allowed:
        raise bad(name, f"{name} must be one of {', '.join(allowed)}")
    return str(raw)


def _flag(body: dict[str, Any], name: str) -> bool:
    raw = body.get(name, False)
    if not isinstance(raw, bool):
        raise bad(name, f"{name} must be true or false")
    return raw


def _fraction(body: dict[str, Any], name: str, low: float, high: float, default: Any) -> Any:
    raw = body.get(name)
    if raw is None:
        return default
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not low <= raw <= high:
        raise bad(name, f"{name} must be a number from {low:g} to {high:g}")
    return float(raw)


def _columns(raw: Any) -> dict[str, str]:
    if raw is None:
        return {}
    if not isinstance(raw, dict) or not raw:
        raise bad("columns", f"columns must map some of {', '.join(TARGETS)} to column names")
    for target, column in raw.items():
        if target not in TARGETS or not isinstance(column, str) or not column:
            raise bad(f"columns.{target}", f"columns maps {', '.join(TARGETS)} to column names")
    if not any(needed <= raw.keys() <= needed | beside for needed, beside in TOGETHER):
        told = "; ".join(" + ".join([*sorted(needed), *(f"[{name}]" for name in beside)]) for needed, beside in TOGETHER)
        raise bad("columns", f"columns names {' + '.join(sorted(raw))}, which make no row; these do: {told}")
    return dict(raw)


def file_of(key: str, project: str) -> StoredFile | None:
    """The uploaded file of the import that was asked for under this idempotency key, if there is one and it is still there."""
    job = Job.objects.filter(project=project, idempotency_key=key, kind=KIND).first()
    options = job.config["import"] if job is not None else {}
    if options.get("source") != "file":
        return None
    return files.visible(project).filter(pk=options["reference"]).first()


def submit(
    order: ImportOrder, *, project: str, created_by: str = "", idempotency_key: str | None = None
) -> tuple[Job, DatasetVersion]:
    """Create the dataset, its first version and the job, or return what the key already made."""
    with transaction.atomic():
        config = {"name": order.name, "import": msgspec.to_builtins(order.options)}
        job = service.submit(KIND, config, project=project, created_by=created_by, idempotency_key=idempotency_key)
        version = DatasetVersion.objects.filter(job=job.id).first()
        if version is not None:
            return job, version
        dataset = Dataset.objects.create(
            name=order.name,
            template="import",
            description=order.description,
            tags=order.tags,
            project=project,
            created_by=created_by,
        )
        version = DatasetVersion.objects.create(
            dataset=dataset, number=1, job=job.id, output_format="", options=msgspec.to_builtins(order.options)
        )
        audit.record(created_by, "dataset.import", dataset.id, project=project, after={"job": job.id})
    return job, version
