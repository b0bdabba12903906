"""``/api/dataset/*`` and ``/api/datasets*``: templates, orders, versions, rows and files."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponseBase

from mlxplatform.broker.connections import BROKER_ERRORS
from mlxplatform.datasets import preview, publish, queries, rowsource, rowtext, submit
from mlxplatform.datasets.lineage import lineage
from mlxplatform.datasets.models import DatasetVersion
from mlxplatform.datasets.templates.base import uses_model
from mlxplatform.datasets.templates.registry import TEMPLATES
from mlxplatform.datasets.wire import dataset_json, row_json, version_json
from mlxplatform.http.body import read_json
from mlxplatform.http.filebody import send_file
from mlxplatform.inference.contract import Refusal
from mlxplatform.inference.placement import find_place

CONTENT_TYPES = {".jsonl": "application/jsonl", ".json": "application/json", ".md": "text/markdown; charset=utf-8"}


def project_of(request: HttpRequest) -> str:
    return getattr(request, "project", "default")


def actor_of(request: HttpRequest) -> str:
    """Who asks, as the audit log names them."""
    identity = getattr(request, "identity", None)
    return identity.actor if identity is not None else "local"


async def templates(request: HttpRequest) -> dict[str, Any]:
    return {"ok": True, "templates": [template.describe() for template in TEMPLATES.values()]}


def idempotency_key(request: HttpRequest, body: dict[str, Any]) -> str | None:
    raw = request.headers.get("Idempotency-Key") or body.get("idempotency_key")
    if raw is None:
        return None
    if not isinstance(raw, str) or not 1 <= len(raw) <= 255:
        raise Refusal(400, "invalid_value", "idempotency_key must be text of 1 to 255 characters", param="idempotency_key")
    return raw


async def submit_dataset(request: HttpRequest) -> dict[str, Any]:
    body = await read_json(request)
    order = await sync_to_async(submit.check)(body, project_of(request))
    await check_model(order)
    return await sync_to_async(_submit)(request, body, order)


async def check_model(order: submit.Order) -> None:
    """Refuse a model nobody has, while somebody can be asked; a job without a host waits for one."""
    names = {order.options.model} if uses_model(order.template, order.inputs) else set()
    if order.options.filters.judge is not None:
        names.add(order.options.filters.judge.model)
    for name in names - {""}:
        try:
            await find_place(name, strict=True)
        except Refusal as refusal:
            if refusal.status != 503:
                raise
        except BROKER_ERRORS:
            return


def _submit(request: HttpRequest, body: dict[str, Any], order: submit.Order) -> dict[str, Any]:
    project = project_of(request)
    key = idempotency_key(request, body)
    job, version = submit.submit(order, project=project, created_by=actor_of(request), idempotency_key=key)
    return {
        "ok": True,
        "job_id": job.id,
        "dataset_id": version.dataset_id,
        "version": version.number,
        "url": f"/api/datasets/{version.dataset_id}",
        "stream": f"/api/jobs/{job.id}/stream",
    }


async def preview_dataset(request: HttpRequest) -> dict[str, Any]:
    body = await read_json(request)
    rows = body.pop("preview_rows", submit.PREVIEW_ROWS)
    if isinstance(rows, bool) or not isinstance(rows, int) or not 1 <= rows <= submit.MAX_PREVIEW_ROWS:
        why = f"preview_rows must be a whole number from 1 to {submit.MAX_PREVIEW_ROWS}"
        raise Refusal(400, "invalid_value", why, param="preview_rows")
    order = await sync_to_async(submit.check)(body, project_of(request))
    await check_model(order)
    start = sync_to_async(submit.submit_preview)
    job = await start(order, rows, project=project_of(request), created_by=actor_of(request))
    return {"ok": True, "job_id": job.id, "stream": f"/api/jobs/{job.id}/stream"}


async def dataset_list(request: HttpRequest) -> dict[str, Any]:
    return await sync_to_async(_list)(request)


def _list(request: HttpRequest) -> dict[str, Any]:
    found, more = queries.page(queries.visible(request), request.GET.dict())
    newest = queries.latest_of(found)
    return {
        "ok": True,
        "datasets": [dataset_json(dataset, newest.get(dataset.id)) for dataset in found],
        "has_more": more,
        "next": found[-1].id if more else None,
    }


async def dataset_detail(request: HttpRequest, dataset_id: str) -> dict[str, Any]:
    return await sync_to_async(_detail)(request, dataset_id)


def _detail(request: HttpRequest, dataset_id: str) -> dict[str, Any]:
    dataset = queries.find(request, dataset_id)
    latest = queries.latest_of([dataset]).get(dataset.id)
    shown = dataset_json(dataset, latest)
    if latest is not None:
        shown["latest"] = version_json(latest, full=True)
    return {"ok": True, "dataset": shown, "lineage": lineage(dataset)}


async def version_list(request: HttpRequest, dataset_id: str) -> dict[str, Any]:
    return await sync_to_async(_versions)(request, dataset_id)


def _versions(request: HttpRequest, dataset_id: str) -> dict[str, Any]:
    dataset = queries.find(request, dataset_id)
    versions = dataset.versions.select_related("parent").order_by("-number")
    return {"ok": True, "versions": [version_json(version) for version in versions]}


async def row_list(request: HttpRequest, dataset_id: str) -> dict[str, Any]:
    return await sync_to_async(_rows)(request, dataset_id)


def _rows(request: HttpRequest, dataset_id: str) -> dict[str, Any]:
    params = request.GET.dict()
    version = queries.version_of(queries.find(request, dataset_id), params)
    if rowsource.in_files(version):
        return {"ok": True, "version": version.number, **_file_rows(version, params)}
    rows, more = queries.rows_page(version, params)
    return {
        "ok": True,
        "version": version.number,
        "rows": [row_json(row) for row in rows],
        "has_more": more,
        "next": rows[-1].ordinal if more else None,
    }


def _file_rows(version: DatasetVersion, params: dict[str, str]) -> dict[str, Any]:
    """Rows of an imported version by place; they have no verdicts to filter by."""
    for name in ("state", "reason", "q"):
        if params.get(name) and (name, params[name]) != ("state", "accepted"):
            raise Refusal(400, "invalid_value", f"imported rows cannot be filtered by {name}; use split and after", param=name)
    limit = queries.whole(params, "limit", queries.DEFAULT_LIMIT, 1, queries.MAX_LIMIT)
    start = queries.whole(params, "offset", 0, 0, 10**9)
    if params.get("after"):
        start = queries.whole(params, "after", 0, 0, 2**62) + 1
    found = rowsource.window(version, start, limit + 1, queries.split_of(params))
    rows = [
        {"ordinal": place, "state": "accepted", "split": split, "chars": rowtext.length(row), "content": row}
        for place, split, row in found[:limit]
    ]
    more = len(found) > limit
    return {"rows": rows, "has_more": more, "next": found[limit - 1][0] if more else None}


async def row_detail(request: HttpRequest, dataset_id: str, ordinal: int) -> dict[str, Any]:
    return await sync_to_async(_row)(request, dataset_id, ordinal)


def _row(request: HttpRequest, dataset_id: str, ordinal: int) -> dict[str, Any]:
    """One made row with its provenance: the calls behind it, with model, sampling, prompt and answer."""
    version = queries.version_of(queries.find(request, dataset_id), request.GET.dict())
    row = version.rows.filter(ordinal=ordinal).first()
    if row is None:
        raise Refusal(404, "row_not_found", "the version has no such row, or it was imported and has no calls")
    made_by = {"template": version.dataset.template, "model": version.report.get("model")}
    made_by["model_revision"] = version.report.get("model_revision")
    return {"ok": True, "row": row_json(row), "made_by": made_by, "calls": preview.calls_of(version.job, row.source)}


async def file_list(request: HttpRequest, dataset_id: str) -> dict[str, Any]:
    version = await sync_to_async(_version)(request, dataset_id)
    return {"ok": True, "version": version.number, "files": version_json(version)["files"]}


def _version(request: HttpRequest, dataset_id: str) -> DatasetVersion:
    return queries.version_of(queries.find(request, dataset_id), request.GET.dict())


async def file_download(request: HttpRequest, dataset_id: str, name: str) -> HttpResponseBase:
    version = await sync_to_async(_version)(request, dataset_id)
    info = version.files.get(name) if name != rowsource.INDEX else None
    if info is None:
        known = ", ".join(file for file in version.files if file != rowsource.INDEX) or "none yet"
        raise Refusal(404, "file_not_found", f"the version has no file of this name; its files: {known}")
    return await send_file(
        request,
        publish.path_of(version.location, name),
        name=f"{version.dataset_id}-v{version.number}-{name}",
        content_type=CONTENT_TYPES.get(name[name.rfind(".") :], "application/octet-stream"),
        etag=info["sha256"],
        headers={"X-Content-SHA256": info["sha256"]},
    )
