"""Finding datasets, versions and rows: what the caller may see, filters, and pages with honest cursors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.db import connection
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from mlxplatform.datasets.inputs import bad
from mlxplatform.datasets.models import Dataset, DatasetRow, DatasetVersion
from mlxplatform.datasets.templates.registry import TEMPLATES
from mlxplatform.inference.contract import Refusal

DEFAULT_LIMIT, MAX_LIMIT = 50, 1000
SPLITS = ("train", "valid", "test")
#: What an imported dataset has in place of a template.
IMPORTED = "import"
ARCHIVED = {"": False, "0": False, "false": False, "1": True, "true": True}


def visible(request: HttpRequest) -> QuerySet[Dataset]:
    """An admin sees all datasets, others those of their project."""
    identity = getattr(request, "identity", None)
    datasets = Dataset.objects.filter(preview=False)
    if identity is not None and not identity.is_admin:
        return datasets.filter(project=request.project)  # type: ignore[attr-defined]
    return datasets


def find(request: HttpRequest, dataset_id: str) -> Dataset:
    dataset = visible(request).filter(pk=dataset_id).first()
    if dataset is None:
        raise Refusal(404, "dataset_not_found", "dataset not found")
    return dataset


def version_of(dataset: Dataset, params: Mapping[str, str], name: str = "version") -> DatasetVersion:
    """The version a query names; without one the newest ready, else the newest."""
    raw = params.get(name, "")
    versions = dataset.versions.select_related("parent", "dataset")
    if not raw or raw == "latest":
        ready = versions.filter(state=DatasetVersion.State.READY).order_by("-number").first()
        version = ready or versions.order_by("-number").first()
    elif raw.removeprefix("v").isdecimal() and len(raw) < 10:
        version = versions.filter(number=int(raw.removeprefix("v"))).first()
    else:
        raise bad(name, f"{name} must be a version number")
    if version is None:
        raise Refusal(404, "version_not_found", "the dataset has no such version", param=name)
    return version


def compared(dataset: Dataset, params: Mapping[str, str]) -> tuple[DatasetVersion, DatasetVersion]:
    """The versions ``from`` and ``to``; without names the newest ready one and the ready one before it."""
    new = version_of(dataset, params, "to")
    if params.get("from"):
        return version_of(dataset, params, "from"), new
    ready = dataset.versions.filter(state=DatasetVersion.State.READY, number__lt=new.number)
    before = ready.select_related("parent", "dataset").order_by("-number").first()
    if before is None:
        raise Refusal(400, "nothing_to_compare", "there is no finished version before this one", param="from")
    return before, new


def whole(params: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    raw = params.get(name, "")
    if not raw:
        return default
    if not raw.isdecimal() or len(raw) > 15 or not low <= int(raw) <= high:
        raise bad(name, f"{name} must be a whole number from {low} to {high}")
    return int(raw)


def split_of(params: Mapping[str, str]) -> str:
    split = params.get("split", "")
    if split not in ("", *SPLITS):
        raise bad("split", f"split must be {', '.join(SPLITS[:-1])} or {SPLITS[-1]}")
    return split


def page(datasets: QuerySet[Dataset], params: Mapping[str, str]) -> tuple[list[Dataset], bool]:
    """Newest first, after the dataset named by ``after``; archived ones only when asked for."""
    limit = whole(params, "limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
    everything = datasets
    if template := params.get("template"):
        if template not in (*TEMPLATES, IMPORTED):
            raise bad("template", f"there is no template {template[:60]!r}; there are {', '.join(TEMPLATES)}, {IMPORTED}")
        datasets = datasets.filter(template=template)
    if params.get("q"):
        datasets = datasets.filter(Q(name__icontains=params["q"]) | Q(id=params["q"]))
    if (archived := params.get("archived", "")) not in ARCHIVED:
        raise bad("archived", "archived must be true or false")
    if not ARCHIVED[archived]:
        datasets = datasets.filter(archived_at=None)
    after = params.get("after", "")
    if after:
        cursor = everything.filter(pk=after).first()
        if cursor is None:
            raise bad("after", "after names no dataset")
        datasets = datasets.filter(Q(created_at__lt=cursor.created_at) | Q(created_at=cursor.created_at, id__lt=cursor.id))
    ordered = datasets.order_by("-created_at", "-id")
    if params.get("tag"):
        ordered = tagged(ordered, params["tag"])
    found = list(ordered[: limit + 1])
    return found[:limit], len(found) > limit


def written(text: str) -> str:
    """A text as it stands within the JSON that this database keeps."""
    return json.dumps(text, ensure_ascii=connection.vendor == "sqlite")[1:-1]


def tagged(datasets: QuerySet[Dataset], tag: str) -> QuerySet[Dataset]:
    """Those with the tag, in whatever case: SQLite cannot look into a JSON list, so it is looked for with the list's quotes."""
    return datasets.filter(tags__icontains=f'"{written(tag)}"') if '"' not in tag and "\\" not in tag else datasets.none()


def saying(rows: QuerySet[DatasetRow], text: str) -> QuerySet[DatasetRow]:
    """The rows that contain the text; case counts beyond ASCII where the database knows no better."""
    return rows.filter(content__icontains=written(text))


def latest_of(datasets: list[Dataset]) -> dict[str, DatasetVersion]:
    """The newest version of each."""
    newest: dict[str, DatasetVersion] = {}
    versions = DatasetVersion.objects.filter(dataset__in=datasets).select_related("parent").defer("inputs")
    for version in versions.order_by("number"):
        newest[version.dataset_id] = version
    return newest


def rows_page(version: DatasetVersion, params: Mapping[str, str]) -> tuple[list[DatasetRow], bool]:
    """Rows in order, after the ordinal ``after``; by state, reason, split or a text they contain."""
    limit = whole(params, "limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
    rows: QuerySet[DatasetRow] = version.rows.all()
    state = params.get("state", "")
    if state and state not in DatasetRow.State.values:
        raise bad("state", f"state must be one of {', '.join(DatasetRow.State.values)}")
    filters: dict[str, Any] = {name: params[name] for name in ("state", "reason") if params.get(name)}
    if split := split_of(params):
        filters["split"] = split
    if params.get("q"):
        rows = saying(rows, params["q"])
    if params.get("after"):
        filters["ordinal__gt"] = whole(params, "after", 0, 0, 2**62)
    offset = whole(params, "offset", 0, 0, 10**9)
    found = list(rows.filter(**filters).order_by("ordinal")[offset : offset + limit + 1])
    return found[:limit], len(found) > limit
