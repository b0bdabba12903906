"""Rows in and out: import, export, the difference between versions, and what may be changed about a dataset."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponseBase, StreamingHttpResponse

from mlxplatform.datasets import changing, columnar, diff, exporting, formats, queries, rowsource
from mlxplatform.datasets.imports import order as imports
from mlxplatform.datasets.inputs import bad
from mlxplatform.datasets.models import DatasetVersion
from mlxplatform.datasets.views import actor_of, idempotency_key, project_of
from mlxplatform.datasets.wire import dataset_json
from mlxplatform.files import service as files
from mlxplatform.files.models import StoredFile
from mlxplatform.files.receiving import Form, read_form
from mlxplatform.files.views import storage_quota
from mlxplatform.http.body import read_json
from mlxplatform.inference.contract import Refusal

#: How many rows have no equivalent in the format that was asked for.
LEFT_OUT = "X-Rows-Left-Out"
ENDINGS = {"csv": ("csv", "text/csv; charset=utf-8"), "parquet": ("parquet", "application/vnd.apache.parquet")}


async def import_dataset(request: HttpRequest) -> dict[str, Any]:
    """JSON that names a source, or a multipart upload with the same fields and a ``file``."""
    if request.content_type == "multipart/form-data":
        return await sync_to_async(_upload)(request)
    body = await read_json(request)
    return await sync_to_async(_import)(request, body)


def _upload(request: HttpRequest) -> dict[str, Any]:
    form = read_form(request, "file")
    fields: dict[str, Any] = dict(form.fields)
    for name in ("valid_fraction", "near_duplicates"):
        if name in fields:
            try:
                fields[name] = float(fields[name])
            except ValueError:
                raise bad(name, f"{name} must be a number") from None
    if "distinct" in fields:
        fields["distinct"] = {"true": True, "false": False}.get(fields["distinct"], fields["distinct"])
    if "columns" in fields:
        try:
            fields["columns"] = msgspec.json.decode(fields["columns"])
        except (msgspec.DecodeError, RecursionError):
            raise bad("columns", 'columns must be a JSON object, as {"user": "question"}') from None
    if "tags" in fields:
        fields["tags"] = [tag.strip() for tag in fields["tags"].split(",") if tag.strip()]
    for taken in ("file_id", "path", "hub"):
        fields.pop(taken, None)
    project = project_of(request)
    key = idempotency_key(request, fields)
    if key is not None and (earlier := imports.file_of(key, project)) is not None and _holds(earlier, form):
        return _import(request, {**fields, "file_id": earlier.id})  # the same upload once more
    files.check_quota(project, form.file.seek(0, 2), storage_quota(request))
    stored = files.store(
        form.pieces(),
        form.filename,
        "user_data",
        project=project,
        created_by=actor_of(request),
        limit=files.size_limit(),
    )
    try:
        return _import(request, {**fields, "file_id": stored.id})
    except Refusal:
        files.delete(stored)
        raise


def _holds(file: StoredFile, form: Form) -> bool:
    """Whether the stored file is the one that was sent."""
    if (file.filename, file.bytes) != (form.filename, form.file.seek(0, 2)):
        return False
    hashed = hashlib.sha256()
    for piece in form.pieces():
        hashed.update(piece)
    return file.sha256 == hashed.hexdigest()


def _import(request: HttpRequest, body: dict[str, Any]) -> dict[str, Any]:
    key = idempotency_key(request, body)
    body.pop("idempotency_key", None)
    project = project_of(request)
    order = imports.check(body, project)
    job, version = imports.submit(order, project=project, created_by=actor_of(request), idempotency_key=key)
    return {
        "ok": True,
        "job_id": job.id,
        "dataset_id": version.dataset_id,
        "version": version.number,
        "url": f"/api/datasets/{version.dataset_id}",
        "stream": f"/api/jobs/{job.id}/stream",
    }


async def export(request: HttpRequest, dataset_id: str) -> HttpResponseBase:
    version, wanted, split = await sync_to_async(_export_request)(request, dataset_id)
    ending, media = ENDINGS.get(wanted, ("jsonl", "application/jsonl"))
    if wanted == "parquet":
        source = columnar.pieces(lambda: rowsource.content(version, split))
    else:
        source = exporting.pieces(rowsource.content(version, split), wanted, version.output_format or "messages")
    left_out = await sync_to_async(_left_out)(version, wanted, split)
    name = "-".join(filter(None, (version.dataset_id, f"v{version.number}", split, wanted if wanted != ending else "")))
    return StreamingHttpResponse(
        _in_threads(source),
        content_type=media,
        headers={
            "Content-Disposition": f'attachment; filename="{name}.{ending}"',
            "X-Content-Type-Options": "nosniff",
            LEFT_OUT: str(left_out),
        },
    )


def _left_out(version: DatasetVersion, wanted: str, split: str) -> int:
    """Rows that have no equivalent in the format.

    Raises:
        Refusal: none of them has one.
    """
    if exporting.takes_all(wanted, version.output_format):
        return 0
    counted = exporting.left_out(rowsource.content(version, split), wanted)
    if counted.left_out and not counted.kept:
        raise bad("format", f"no row of this version can be written as {wanted}; its own format is {version.output_format}")
    return counted.left_out


def _export_request(request: HttpRequest, dataset_id: str) -> tuple[DatasetVersion, str, str]:
    params = request.GET.dict()
    wanted, split = params.get("format", "jsonl"), queries.split_of(params)
    if wanted not in formats.EXPORTS:
        raise bad("format", f"format must be one of {', '.join(formats.EXPORTS)}")
    return queries.version_of(queries.find(request, dataset_id), params), wanted, split


async def _in_threads(source: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Draw each piece in a thread: it reads files or SQL."""
    step = sync_to_async(lambda: next(source, None))
    while (piece := await step()) is not None:
        yield piece


async def difference(request: HttpRequest, dataset_id: str) -> dict[str, Any]:
    return await sync_to_async(_difference)(request, dataset_id)


def _difference(request: HttpRequest, dataset_id: str) -> dict[str, Any]:
    old, new = queries.compared(queries.find(request, dataset_id), request.GET.dict())
    found = diff.difference(rowsource.content(old), rowsource.content(new), rowsource.content(old))
    return {
        "ok": True,
        "from": old.number,
        "to": new.number,
        "common": found.common,
        "added": found.added,
        "removed": found.removed,
        "added_rows": found.added_rows,
        "removed_rows": found.removed_rows,
    }


async def change(request: HttpRequest, dataset_id: str) -> dict[str, Any]:
    body = await read_json(request)
    return await sync_to_async(_change)(request, dataset_id, body)


def _change(request: HttpRequest, dataset_id: str, body: dict[str, Any]) -> dict[str, Any]:
    dataset = queries.find(request, dataset_id)
    changing.change(dataset, body, actor_of(request))
    return {"ok": True, "dataset": dataset_json(dataset, queries.latest_of([dataset]).get(dataset.id))}
