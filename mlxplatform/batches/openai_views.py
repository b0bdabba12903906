"""``/v1/batches``: the OpenAI Batch API."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest

from mlxplatform.batches import protocols, service
from mlxplatform.batches.models import Batch
from mlxplatform.files import service as files
from mlxplatform.files.views import actor_of, check_expiry, project_of
from mlxplatform.files.wire import page, unix, whole_number
from mlxplatform.http.body import read_json
from mlxplatform.http.views import endpoint
from mlxplatform.inference.contract import Refusal

FIELDS = {"input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after"}
#: OpenAI's limits of metadata.
METADATA_PAIRS, METADATA_KEY, METADATA_VALUE = 16, 64, 512


def batch_json(batch: Batch) -> dict[str, Any]:
    failed = batch.errored + batch.cancelled + batch.expired
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model or None,
        "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
        "input_file_id": batch.input_file_name,
        "completion_window": batch.completion_window,
        "status": batch.status,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": unix(batch.created_at),
        "in_progress_at": unix(batch.in_progress_at),
        "expires_at": unix(batch.expires_at),
        "finalizing_at": unix(batch.finalizing_at),
        "completed_at": unix(batch.completed_at),
        "failed_at": unix(batch.failed_at),
        "expired_at": unix(batch.expired_at),
        "cancelling_at": unix(batch.cancelling_at),
        "cancelled_at": unix(batch.cancelled_at),
        "request_counts": {"total": batch.total, "completed": batch.succeeded, "failed": failed},
        "usage": {
            "input_tokens": batch.prompt_tokens,
            "input_tokens_details": {"cached_tokens": batch.cached_tokens},
            "output_tokens": batch.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": batch.reasoning_tokens},
            "total_tokens": batch.prompt_tokens + batch.completion_tokens,
        },
        "metadata": batch.metadata,
        "local": service.summary(batch),
    }


async def create_batch(request: HttpRequest) -> dict[str, Any]:
    return await sync_to_async(_create)(request, await read_json(request))


def _create(request: HttpRequest, body: dict[str, Any]) -> dict[str, Any]:
    for name in body:
        if name not in FIELDS:
            raise Refusal(400, "unknown_parameter", f"Unknown parameter: '{name[:60]}'.", param=name[:60])
    for name in ("input_file_id", "endpoint", "completion_window"):
        if body.get(name) is None:
            raise Refusal(400, "missing_required_parameter", f"Missing required parameter: '{name}'.", param=name)
        if not isinstance(body[name], str):
            raise Refusal(400, "invalid_type", f"'{name}' must be a string.", param=name)
    if body["endpoint"] not in protocols.endpoints():
        allowed = ", ".join(sorted(protocols.endpoints()))
        raise Refusal(400, "invalid_value", f"endpoint must be one of {allowed}.", param="endpoint")
    lifetime = service.window(body["completion_window"])
    metadata = _metadata(body.get("metadata"))
    expiry = body.get("output_expires_after")
    if expiry is not None and not isinstance(expiry, dict):
        raise Refusal(400, "invalid_type", "'output_expires_after' must be an object.", param="output_expires_after")
    seconds = check_expiry(expiry.get("anchor"), expiry.get("seconds"), "output_expires_after") if expiry else None
    key = service.idempotency_key(request.headers.get("Idempotency-Key"))
    file = files.find(body["input_file_id"], project_of(request), param="input_file_id")
    if file.purpose != "batch":
        raise Refusal(
            400, "invalid_purpose", "The input file must have been uploaded with purpose 'batch'.", param="input_file_id"
        )
    batch = service.create(
        "openai",
        body["endpoint"],
        file,
        project=project_of(request),
        created_by=actor_of(request),
        lifetime=lifetime,
        completion_window=body["completion_window"],
        metadata=metadata,
        output_seconds=seconds,
        idempotency_key=key,
    )
    return batch_json(batch)


def _metadata(raw: Any) -> dict[str, str] | None:
    if raw is None:
        return None
    if not isinstance(raw, dict) or len(raw) > METADATA_PAIRS:
        raise Refusal(400, "invalid_value", f"metadata must be an object of at most {METADATA_PAIRS} pairs.", param="metadata")
    for key, value in raw.items():
        if not isinstance(value, str) or len(key) > METADATA_KEY or len(value) > METADATA_VALUE:
            message = f"metadata takes keys up to {METADATA_KEY} and string values up to {METADATA_VALUE} characters."
            raise Refusal(400, "invalid_value", message, param="metadata")
        if "\0" in key + value:
            raise Refusal(400, "invalid_value", "metadata holds no NUL character.", param="metadata")
    return raw


def list_batches(request: HttpRequest) -> dict[str, Any]:
    params = request.GET.dict()
    limit = whole_number(params, "limit", 20, 100)
    return page(service.visible(project_of(request), "openai"), batch_json, limit=limit, after=params.get("after", ""))


def show_batch(request: HttpRequest, batch_id: str) -> dict[str, Any]:
    return batch_json(service.find(batch_id, project_of(request), "openai"))


def cancel_batch(request: HttpRequest, batch_id: str) -> dict[str, Any]:
    batch = service.find(batch_id, project_of(request), "openai")
    return batch_json(service.cancel(batch, actor_of(request)))


batch_list = endpoint(GET=list_batches, POST=create_batch)
batch_detail = endpoint(GET=show_batch)
batch_cancel = endpoint(POST=cancel_batch)
