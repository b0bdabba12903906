"""``/v1/files``: the OpenAI Files API."""

from __future__ import annotations

import asyncio
from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction
from django.http import HttpRequest, HttpResponseBase, StreamingHttpResponse

from mlxplatform.accounts import audit
from mlxplatform.files import blobs, receiving, service
from mlxplatform.files.wire import file_json, page, whole_number
from mlxplatform.http.filebody import send_file
from mlxplatform.http.views import endpoint
from mlxplatform.inference.contract import Refusal

#: Bounds of ``expires_after[seconds]``: an hour to thirty days.
SECONDS = range(3600, 2_592_000 + 1)
MAX_LIST = 10_000
CONTENT_TYPES = {
    ".jsonl": "application/jsonl",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".csv": "text/csv",
}


def project_of(request: HttpRequest) -> str:
    return getattr(request, "project", "default")


def sight_of(request: HttpRequest) -> str | None:
    """The project in which a file is looked up by its id; None for administrators, whose pages list every project's."""
    identity = getattr(request, "identity", None)
    return None if identity is not None and identity.is_admin else project_of(request)


def actor_of(request: HttpRequest) -> str:
    identity = getattr(request, "identity", None)
    return identity.actor if identity is not None else "local"


def storage_quota(request: HttpRequest) -> int | None:
    identity = getattr(request, "identity", None)
    return identity.quota.storage_bytes if identity is not None else None


def upload_file(request: HttpRequest) -> dict[str, Any]:
    form = receiving.read_form(request, "file")
    purpose = service.check_purpose(form.fields.get("purpose"), form.filename)
    seconds = expires_after(form.fields)
    size = form.file.seek(0, 2)
    service.check_quota(project_of(request), size, storage_quota(request))
    file = service.store(
        form.pieces(),
        form.filename,
        purpose,
        project=project_of(request),
        created_by=actor_of(request),
        expires_at=service.expiry(purpose, seconds),
        limit=service.size_limit(),
    )
    audit.record(
        actor_of(request), "file.create", file.id, project=file.project, after={"filename": file.filename, "bytes": file.bytes}
    )
    return file_json(file)


def expires_after(fields: dict[str, Any]) -> int | None:
    """Seconds from ``expires_after[anchor]`` and ``expires_after[seconds]``.

    Raises:
        Refusal: half given, another anchor, or outside the bounds.
    """
    anchor, raw = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and raw is None:
        return None
    return check_expiry(anchor, int(raw) if raw is not None and raw.isascii() and raw.isdigit() and len(raw) < 10 else raw)


def check_expiry(anchor: Any, seconds: Any, param: str = "expires_after") -> int:
    if anchor != "created_at":
        raise Refusal(400, "invalid_value", "The anchor must be 'created_at'.", param=f"{param}[anchor]")
    if not isinstance(seconds, int) or isinstance(seconds, bool) or seconds not in SECONDS:
        message = f"seconds must be a whole number from {SECONDS.start} to {SECONDS.stop - 1}."
        raise Refusal(400, "invalid_value", message, param=f"{param}[seconds]")
    return seconds


def list_files(request: HttpRequest) -> dict[str, Any]:
    params = request.GET.dict()
    order = params.get("order") or "desc"
    if order not in {"asc", "desc"}:
        raise Refusal(400, "invalid_value", "order must be asc or desc.", param="order")
    files = service.visible(project_of(request))
    purpose = params.get("purpose")
    if purpose:
        known = (*service.PURPOSES, *service.PRODUCED_PURPOSES)
        if purpose not in known:
            raise Refusal(400, "invalid_value", f"purpose must be one of {', '.join(known)}.", param="purpose")
        files = files.filter(purpose=purpose)
    limit = whole_number(params, "limit", MAX_LIST, MAX_LIST)
    return page(files, file_json, limit=limit, after=params.get("after", ""), newest_first=order == "desc")


def show_file(request: HttpRequest, file_id: str) -> dict[str, Any]:
    return file_json(service.find(file_id, sight_of(request)))


def delete_file(request: HttpRequest, file_id: str) -> dict[str, Any]:
    with transaction.atomic():
        file = service.find(file_id, project_of(request))
        service.delete(file)
        audit.record(actor_of(request), "file.delete", file.id, project=file.project, before=file_json(file))
    return {"id": file.id, "object": "file", "deleted": True}


async def send_content(request: HttpRequest, file_id: str) -> HttpResponseBase:
    file = await sync_to_async(service.find)(file_id, sight_of(request))
    extension = "." + file.filename.rpartition(".")[2].lower()
    content_type = CONTENT_TYPES.get(extension, "application/octet-stream")
    if file.producer:
        producer = service.producers[file.producer.partition(":")[0]]
        return StreamingHttpResponse(producer(file), content_type=content_type, headers={"Cache-Control": "no-store"})
    path = await asyncio.to_thread(blobs.path_of, file.id)
    return await send_file(request, path, name=file.filename, content_type=content_type, etag=file.sha256)


file_list = endpoint(GET=list_files, POST=upload_file)
file_detail = endpoint(GET=show_file, DELETE=delete_file)
file_content = endpoint(GET=send_content)
