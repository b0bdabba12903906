"""What the platform does with files: store, find, open, delete, expire. No HTTP.

Other apps use it too: batches read their input through :func:`open_input` and publish their output through
:func:`complete`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Callable, Iterable
from typing import BinaryIO

from django.conf import settings
from django.db.models import Q, QuerySet, Sum
from django.utils import timezone

from mlxplatform.files import blobs
from mlxplatform.files.models import StoredFile, Upload, UploadPart, new_file_id
from mlxplatform.inference.contract import Refusal

#: What a client may upload, and the extension such a file must have ("" any).
PURPOSES = {"assistants": "", "batch": ".jsonl", "fine-tune": ".jsonl", "vision": "", "user_data": "", "evals": ""}
#: What only the platform makes.
PRODUCED_PURPOSES = ("assistants_output", "batch_output", "fine-tune-results")
#: Batch input is forgotten after this unless the client says otherwise.
BATCH_LIFETIME = dt.timedelta(days=30)

#: Makers of content that is not complete yet, by the first part of ``StoredFile.producer``.
Producer = Callable[[StoredFile], AsyncIterator[bytes]]
producers: dict[str, Producer] = {}
#: Functions that say which of the given file ids are still needed by running work.
holders: list[Callable[[list[str]], set[str]]] = []


def visible(project: str | None) -> QuerySet[StoredFile]:
    """Files that exist for a client. ``project`` None: of every project."""
    found = StoredFile.objects.filter(deleted_at=None).filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()))
    return found if project is None else found.filter(project=project)


def find(file_id: str, project: str | None, *, param: str = "file_id") -> StoredFile:
    """Raises:
    Refusal: 404, as for a file of another project.
    """
    # PostgreSQL fails on a NUL character instead of finding nothing; ids in bodies may hold one.
    file = None if "\0" in file_id else visible(project).filter(pk=file_id).first()
    if file is None:
        raise Refusal(404, "file_not_found", f"No such File object: {file_id[:80]}", param=param)
    return file


def check_purpose(purpose: str | None, filename: str) -> str:
    """Raises:
    Refusal: unknown purpose, or a file name that does not go with it.
    """
    if not purpose:
        raise Refusal(400, "missing_required_parameter", "Missing required parameter: 'purpose'.", param="purpose")
    if purpose not in PURPOSES:
        raise Refusal(400, "invalid_value", f"purpose must be one of {', '.join(PURPOSES)}.", param="purpose")
    extension = PURPOSES[purpose]
    if not filename.lower().endswith(extension):
        raise Refusal(400, "invalid_file_format", f"Files for purpose '{purpose}' must end in {extension}.", param="file")
    return purpose


def size_limit() -> int:
    return settings.ENV.max_file_mb * 1024 * 1024


def check_quota(project: str, more: int, allowed: int | None) -> None:
    """Raises:
    Refusal: the project's files would exceed its storage.
    """
    if not allowed:
        return
    used = visible(project).aggregate(total=Sum("bytes"))["total"] or 0
    if used + more > allowed:
        message = f"This project's files would take {used + more} bytes of its {allowed}."
        raise Refusal(400, "storage_quota_exceeded", message, param="file")


def expiry(purpose: str, seconds: int | None) -> dt.datetime | None:
    if seconds is not None:
        return timezone.now() + dt.timedelta(seconds=seconds)
    return timezone.now() + BATCH_LIFETIME if purpose == "batch" else None


def store(
    pieces: Iterable[bytes],
    filename: str,
    purpose: str,
    *,
    project: str = "default",
    created_by: str = "",
    expires_at: dt.datetime | None = None,
    limit: int | None = None,
) -> StoredFile:
    """Write a new file: bytes first, then the row, so that a row never lacks its bytes.

    Raises:
        Refusal: too large, empty, or no space.
    """
    file_id = new_file_id()
    written = blobs.write(file_id, pieces, limit=limit)
    if not written.bytes:
        blobs.remove(file_id)
        raise Refusal(400, "empty_file", "The uploaded file is empty.", param="file")
    return StoredFile.objects.create(
        id=file_id,
        filename=filename,
        purpose=purpose,
        bytes=written.bytes,
        sha256=written.sha256,
        project=project,
        created_by=created_by,
        expires_at=expires_at,
    )


def announce(
    filename: str, purpose: str, producer: str, *, project: str, created_by: str = "", expires_at: dt.datetime | None = None
) -> StoredFile:
    """A file whose content ``producer`` can already show although it is not complete."""
    return StoredFile.objects.create(
        filename=filename,
        purpose=purpose,
        status="uploaded",
        producer=producer,
        project=project,
        created_by=created_by,
        expires_at=expires_at,
    )


def complete(file: StoredFile, pieces: Iterable[bytes]) -> None:
    """Write the final content of an announced file. Repeating it after a crash is harmless: the rename replaces."""
    written = blobs.write(file.id, pieces)
    file.bytes, file.sha256, file.status, file.producer = written.bytes, written.sha256, "processed", ""
    file.save(update_fields=["bytes", "sha256", "status", "producer"])


def open_blob(file: StoredFile) -> BinaryIO:
    """The file's bytes.

    Raises:
        Refusal: they are gone.
    """
    try:
        return blobs.path_of(file.id).open("rb")
    except FileNotFoundError:
        raise Refusal(404, "file_content_missing", "The file's content is not here any more.") from None


def delete(file: StoredFile) -> None:
    """Gone for clients now; the bytes go when no running work needs them."""
    file.deleted_at = timezone.now()
    file.save(update_fields=["deleted_at"])


def sweep() -> int:
    """Remove the bytes and rows of deleted and expired files, and what uploads left. Called by the scheduler."""
    now, removed = timezone.now(), 0
    Upload.objects.filter(status="pending", expires_at__lt=now).update(status="expired")
    for part in UploadPart.objects.exclude(upload__status="pending"):
        blobs.remove(part.id)
        part.delete()
    doomed = StoredFile.objects.filter(Q(deleted_at__isnull=False) | Q(expires_at__lt=now))
    ids = list(doomed.values_list("id", flat=True)[:1000])
    held: set[str] = set().union(*(holder(ids) for holder in holders)) if ids else set()
    for file_id in ids:
        if file_id not in held:
            blobs.remove(file_id)
            StoredFile.objects.filter(pk=file_id).delete()
            removed += 1
    return removed + blobs.remove_stale()
