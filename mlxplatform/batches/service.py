"""Creating, finding and cancelling batches. No HTTP; both dialects come here."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from mlxplatform.accounts import audit
from mlxplatform.batches import results
from mlxplatform.batches.models import CANCELLED, CANCELLING, ENDED, Batch, new_anthropic_id, new_openai_id
from mlxplatform.files.models import StoredFile
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import service as jobs

KIND = "batch"

_WINDOW = re.compile(r"^([1-9][0-9]{0,2})([hd])\Z")
#: Shortest and longest window; OpenAI has the shortest only.
WINDOW_BOUNDS = (dt.timedelta(hours=24), dt.timedelta(days=7))
#: Longest idempotency key, characters.
KEY_LIMIT = 255


def idempotency_key(raw: str | None) -> str | None:
    """Raises:
    Refusal: it is empty or too long.
    """
    if raw is not None and not 1 <= len(raw) <= KEY_LIMIT:
        raise Refusal(400, "invalid_value", f"Idempotency-Key must have 1 to {KEY_LIMIT} characters.", param="idempotency_key")
    return raw


def window(raw: str) -> dt.timedelta:
    """Raises:
    Refusal: not of the form 24h or 7d, or outside the bounds.
    """
    found = _WINDOW.match(raw)
    length = dt.timedelta(**{{"h": "hours", "d": "days"}[found[2]]: int(found[1])}) if found else None
    if length is None or not WINDOW_BOUNDS[0] <= length <= WINDOW_BOUNDS[1]:
        raise Refusal(400, "invalid_value", "completion_window must be '24h', or longer up to '7d'.", param="completion_window")
    return length


def create(
    dialect: str,
    endpoint: str,
    file: StoredFile,
    *,
    project: str,
    created_by: str,
    lifetime: dt.timedelta = WINDOW_BOUNDS[0],
    completion_window: str = "24h",
    metadata: dict[str, str] | None = None,
    output_seconds: int | None = None,
    idempotency_key: str | None = None,
    total: int = 0,
) -> Batch:
    """A batch and its job in one transaction, or the batch this idempotency key already made.

    Raises:
        Refusal: the key was used for another batch.
    """
    if idempotency_key and (twin := earlier(project, idempotency_key, endpoint, file.id, file.sha256)):
        return twin
    now = timezone.now()
    try:
        with transaction.atomic():
            batch = Batch.objects.create(
                id=new_openai_id() if dialect == "openai" else new_anthropic_id(),
                dialect=dialect,
                endpoint=endpoint,
                input_file=file,
                input_file_name=file.id,
                completion_window=completion_window,
                metadata=metadata,
                output_seconds=output_seconds,
                idempotency_key=idempotency_key,
                total=total,
                project=project,
                created_by=created_by,
                created_at=now,
                expires_at=now + lifetime,
            )
            batch.job = jobs.submit(
                KIND, {"batch": batch.id}, project=project, created_by=created_by, deadline_at=batch.expires_at
            )
            batch.save(update_fields=["job"])
            audit.record(created_by, "batch.create", batch.id, project=project, after={"endpoint": endpoint, "file": file.id})
    except IntegrityError:
        twin = earlier(project, idempotency_key or "", endpoint, file.id, file.sha256)
        if twin is None:
            raise
        return twin
    return batch


def earlier(project: str, key: str, endpoint: str, file_id: str = "", sha256: str = "") -> Batch | None:
    """The batch this key already made, of the same file or of a list of requests with the same content.

    Raises:
        Refusal: it was another batch.
    """
    twin = Batch.objects.filter(project=project, idempotency_key=key).select_related("input_file").first()
    if twin is None:
        return None
    # Requests sent inline become a new file at each attempt: what they say tells whether it is the same order.
    inline = twin.dialect == "anthropic" and (twin.input_file is None or twin.input_file.sha256 == sha256)
    if twin.endpoint != endpoint or not (inline or twin.input_file_name == file_id):
        raise Refusal(400, "idempotency_conflict", "This idempotency key was used for another batch.", param="idempotency_key")
    return twin


def visible(project: str, dialect: str) -> QuerySet[Batch]:
    found = Batch.objects.filter(project=project, dialect=dialect, deleted_at=None)
    return found.select_related("output_file", "error_file", "job")


def find(batch_id: str, project: str, dialect: str) -> Batch:
    """Raises:
    Refusal: 404, as for a batch of another project.
    """
    batch = visible(project, dialect).filter(pk=batch_id).first()
    if batch is None:
        raise Refusal(404, "batch_not_found", f"No such Batch object: {batch_id[:80]}", param="batch_id")
    return batch


def cancel(batch: Batch, by: str) -> Batch:
    """Stop starting lines; what runs is stopped, what is finished is kept. Repeating it is harmless.

    Raises:
        Refusal: it ended otherwise.
    """
    with transaction.atomic():
        batch = Batch.objects.select_for_update(of=("self",)).get(pk=batch.id)
        if batch.status in {CANCELLING, CANCELLED}:
            return batch
        if batch.status in ENDED:
            raise Refusal(400, "batch_ended", f"The batch is already {batch.status}.", param="batch_id")
        before = batch.status
        results.set_status(batch.id, CANCELLING)
        audit.record(by, "batch.cancel", batch.id, project=batch.project, before={"status": before}, after={"status": CANCELLING})
        if batch.job_id:
            jobs.cancel(batch.job_id, by)
    return Batch.objects.select_related("output_file", "error_file", "job").get(pk=batch.id)


def delete(batch: Batch, by: str) -> None:
    """Raises:
    Refusal: it has not ended.
    """
    if batch.status not in ENDED:
        raise Refusal(400, "batch_not_ended", "A batch can be deleted after it has ended; cancel it first.", param="batch_id")
    with transaction.atomic():
        Batch.objects.filter(pk=batch.id).update(deleted_at=timezone.now())
        StoredFile.objects.filter(pk__in=[batch.output_file_id, batch.input_file_id]).update(deleted_at=timezone.now())
        audit.record(by, "batch.delete", batch.id, project=batch.project)


def summary(batch: Batch) -> dict[str, Any]:
    """What this platform adds to either dialect's object."""
    return {"job_id": batch.job_id, "forecast": batch.forecast}
