"""``/v1/uploads``: a large file in parts, put together in the order the client names."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterator
from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction
from django.db.models import Sum
from django.http import HttpRequest
from django.utils import timezone

from mlxplatform.accounts import audit
from mlxplatform.files import blobs, receiving, service
from mlxplatform.files.models import Upload, UploadPart, new_part_id
from mlxplatform.files.names import base_name
from mlxplatform.files.views import actor_of, check_expiry, project_of, storage_quota
from mlxplatform.files.wire import unix, upload_json
from mlxplatform.http.body import read_json
from mlxplatform.http.views import endpoint
from mlxplatform.inference.contract import Refusal

#: An upload not completed within this is forgotten.
LIFETIME = dt.timedelta(hours=1)
#: Largest single part, bytes, as in the API this follows.
PART_LIMIT = 64 * 1024 * 1024
# All parts may take twice the upload's bytes and one part more: parts that failed are sent again, and stay until the end.


async def create_upload(request: HttpRequest) -> dict[str, Any]:
    return await sync_to_async(_create)(request, await read_json(request))


def _create(request: HttpRequest, body: dict[str, Any]) -> dict[str, Any]:
    for name, kind, words in (
        ("filename", str, "a string"),
        ("purpose", str, "a string"),
        ("mime_type", str, "a string"),
        ("bytes", int, "an integer"),
    ):
        if body.get(name) is None:
            raise Refusal(400, "missing_required_parameter", f"Missing required parameter: '{name}'.", param=name)
        if not isinstance(body[name], kind) or isinstance(body[name], bool):
            raise Refusal(400, "invalid_type", f"'{name}' must be {words}.", param=name)
    size = body["bytes"]
    if not 1 <= size <= service.size_limit():
        raise Refusal(400, "invalid_value", f"bytes must be from 1 to {service.size_limit()}.", param="bytes")
    filename = base_name(body["filename"])
    purpose = service.check_purpose(body["purpose"], filename)
    expiry = body.get("expires_after")
    if expiry is not None and not isinstance(expiry, dict):
        raise Refusal(400, "invalid_type", "'expires_after' must be an object.", param="expires_after")
    seconds = check_expiry(expiry.get("anchor"), expiry.get("seconds")) if expiry else None
    service.check_quota(project_of(request), size, storage_quota(request))
    upload = Upload.objects.create(
        filename=filename,
        purpose=purpose,
        bytes=size,
        file_seconds=seconds,
        project=project_of(request),
        created_by=actor_of(request),
        expires_at=timezone.now() + LIFETIME,
    )
    return upload_json(upload)


def add_part(request: HttpRequest, upload_id: str) -> dict[str, Any]:
    upload = _pending(request, upload_id)
    form = receiving.read_form(request, "data")
    part_id = new_part_id()
    written = blobs.write(part_id, form.pieces(), limit=PART_LIMIT)
    try:
        with transaction.atomic():
            _pending(request, upload_id)
            kept = upload.parts.aggregate(total=Sum("bytes"))["total"] or 0
            if kept + written.bytes > 2 * upload.bytes + PART_LIMIT:
                message = f"The parts take far more than the {upload.bytes} bytes of the upload."
                raise Refusal(400, "bytes_mismatch", message, param="data")
            part = UploadPart.objects.create(id=part_id, upload=upload, bytes=written.bytes)
    except Refusal:
        blobs.remove(part_id)
        raise
    return {"id": part.id, "object": "upload.part", "created_at": unix(part.created_at), "upload_id": upload.id}


async def complete_upload(request: HttpRequest, upload_id: str) -> dict[str, Any]:
    return await sync_to_async(_complete)(request, upload_id, await read_json(request))


def _complete(request: HttpRequest, upload_id: str, body: dict[str, Any]) -> dict[str, Any]:
    upload = _pending(request, upload_id)
    ids = body.get("part_ids")
    if not isinstance(ids, list) or not ids or not all(isinstance(one, str) for one in ids):
        raise Refusal(400, "invalid_value", "part_ids must be a list of part ids.", param="part_ids")
    parts = {part.id: part for part in upload.parts.all()}
    if len(set(ids)) != len(ids) or not set(ids) <= parts.keys():
        raise Refusal(400, "invalid_value", "part_ids must name parts of this upload, each once.", param="part_ids")
    size = sum(parts[one].bytes for one in ids)
    if size != upload.bytes:
        raise Refusal(
            400, "bytes_mismatch", f"The parts have {size} bytes, the upload was created for {upload.bytes}.", param="part_ids"
        )
    wanted = body.get("md5")
    if wanted is not None and wanted != _md5(ids):
        raise Refusal(400, "checksum_mismatch", "The parts' MD5 is another one.", param="md5")
    # Before the transaction: joining gigabytes must not keep every other writer waiting.
    file = service.store(
        _joined(ids),
        upload.filename,
        upload.purpose,
        project=upload.project,
        created_by=upload.created_by,
        expires_at=service.expiry(upload.purpose, upload.file_seconds),
    )
    try:
        with transaction.atomic():
            upload = _pending(request, upload_id)
            upload.status, upload.file = "completed", file
            upload.save(update_fields=["status", "file"])
            what = {"filename": file.filename, "bytes": file.bytes, "upload": upload.id}
            audit.record(actor_of(request), "file.create", file.id, project=file.project, after=what)
    except Refusal:
        service.delete(file)  # somebody else completed or cancelled it meanwhile
        raise
    return upload_json(upload)


def cancel_upload(request: HttpRequest, upload_id: str) -> dict[str, Any]:
    with transaction.atomic():
        upload = _pending(request, upload_id)
        upload.status = "cancelled"
        upload.save(update_fields=["status"])
        audit.record(actor_of(request), "upload.cancel", upload.id, project=upload.project, before={"status": "pending"})
    return upload_json(upload)


def _pending(request: HttpRequest, upload_id: str) -> Upload:
    uploads = Upload.objects.filter(pk=upload_id, project=project_of(request))
    if transaction.get_connection().in_atomic_block:
        uploads = uploads.select_for_update(of=("self",))
    found = uploads.first()
    if found is None:
        raise Refusal(404, "upload_not_found", f"No such Upload object: {upload_id[:80]}", param="upload_id")
    if found.status == "pending" and found.expires_at < timezone.now():
        found.status = "expired"
    if found.status != "pending":
        raise Refusal(400, "upload_not_pending", f"The upload is {found.status}.", param="upload_id")
    return found


def _joined(ids: list[str]) -> Iterator[bytes]:
    for one in ids:
        yield from blobs.pieces_of(one)


def _md5(ids: list[str]) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    for piece in _joined(ids):
        digest.update(piece)
    return digest.hexdigest()


upload_list = endpoint(POST=create_upload)
upload_parts = endpoint(POST=add_part)
upload_complete = endpoint(POST=complete_upload)
upload_cancel = endpoint(POST=cancel_upload)
