"""``/v1/messages/batches``: the Anthropic Message Batches API."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase, StreamingHttpResponse

from mlxplatform.batches import lines, protocols, results, service
from mlxplatform.batches.models import CANCELLING, ENDED, Batch
from mlxplatform.batches.run import MAX_LINES
from mlxplatform.files import blobs
from mlxplatform.files import service as files
from mlxplatform.files.views import actor_of, project_of, storage_quota
from mlxplatform.files.wire import page, whole_number
from mlxplatform.http.body import MIB, read_json
from mlxplatform.http.filebody import send_file
from mlxplatform.http.views import endpoint
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs.wire import time_text

#: Largest body of one batch, bytes.
BODY_LIMIT = 256 * MIB
#: Inputs written from an inline list are files too, but not the client's.
PURPOSE = "message_batch"


def batch_json(batch: Batch, request: HttpRequest) -> dict[str, Any]:
    ended = batch.status in ENDED
    if ended:
        state = "ended"
    else:
        state = "canceling" if batch.status == CANCELLING else "in_progress"
    counts = {
        "processing": 0 if ended else batch.total,
        "succeeded": batch.succeeded if ended else 0,
        "errored": batch.errored if ended else 0,
        "canceled": batch.cancelled if ended else 0,
        "expired": batch.expired if ended else 0,
    }
    url = request.build_absolute_uri(f"/v1/messages/batches/{batch.id}/results")
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": state,
        "request_counts": counts,
        "created_at": time_text(batch.created_at),
        "expires_at": time_text(batch.expires_at),
        "ended_at": time_text(batch.completed_at or batch.cancelled_at or batch.expired_at or batch.failed_at),
        "cancel_initiated_at": time_text(batch.cancelling_at),
        "archived_at": None,
        "results_url": url if ended else None,
        "local": {**service.summary(batch), "finished": batch.finished_lines},
    }


async def create_batch(request: HttpRequest) -> dict[str, Any]:
    body = await read_json(request, min(BODY_LIMIT, settings.ENV.max_file_mb * MIB))
    return await sync_to_async(_create)(request, body)


def _create(request: HttpRequest, body: dict[str, Any]) -> dict[str, Any]:
    asked = _checked(body)
    key = service.idempotency_key(request.headers.get("Idempotency-Key"))
    pieces = [(lines.encode(one) + "\n").encode() for one in asked]
    if key is not None:
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
        if twin := service.earlier(project_of(request), key, protocols.MESSAGES, sha256=digest.hexdigest()):
            return batch_json(twin, request)
    files.check_quota(project_of(request), sum(map(len, pieces)), storage_quota(request))
    file = files.store(
        pieces,
        "requests.jsonl",
        PURPOSE,
        project=project_of(request),
        created_by=actor_of(request),
    )
    try:
        batch = service.create(
            "anthropic",
            protocols.MESSAGES,
            file,
            project=project_of(request),
            created_by=actor_of(request),
            idempotency_key=key,
            total=len(asked),
        )
    except Refusal:
        files.delete(file)
        raise
    if batch.input_file_name != file.id:
        files.delete(file)  # the same order arrived twice at once, and the other one was first
    return batch_json(batch, request)


def _checked(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The requests of a body; their params are checked when they run.

    Raises:
        Refusal: naming the request by position.
    """
    asked = body.get("requests")
    if not isinstance(asked, list) or not asked:
        raise Refusal(400, "invalid_value", "requests: must be a list of at least one request.", param="requests")
    limit = MAX_LINES["anthropic"]
    if len(asked) > limit:
        raise Refusal(400, "invalid_value", f"requests: at most {limit} requests in one batch.", param="requests")
    keys = lines.Keys()
    for index, one in enumerate(asked):
        where = f"requests.{index}"
        if not isinstance(one, dict):
            raise Refusal(400, "invalid_type", f"{where}: must be an object.", param=where)
        custom_id = one.get("custom_id")
        if not isinstance(custom_id, str) or not lines.ANTHROPIC_CUSTOM_ID.match(custom_id):
            message = f"{where}.custom_id: must be 1 to 64 letters, digits, hyphens and underscores."
            raise Refusal(400, "invalid_value", message, param=f"{where}.custom_id")
        if not isinstance(one.get("params"), dict):
            raise Refusal(400, "invalid_type", f"{where}.params: must be an object.", param=f"{where}.params")
        if not keys.is_new(custom_id):
            raise Refusal(400, "invalid_value", f"{where}.custom_id: was used before in this batch.", param=f"{where}.custom_id")
    return [{"custom_id": one["custom_id"], "params": one["params"]} for one in asked]


def list_batches(request: HttpRequest) -> dict[str, Any]:
    params = request.GET.dict()
    after, before = params.get("after_id", ""), params.get("before_id", "")
    if after and before:
        raise Refusal(400, "invalid_value", "before_id: cannot be combined with after_id.", param="before_id")
    listed = page(
        service.visible(project_of(request), "anthropic"),
        lambda batch: batch_json(batch, request),
        limit=whole_number(params, "limit", 20, 1000),
        after=after,
        before=before,
        after_name="after_id",
        before_name="before_id",
    )
    return {name: listed[name] for name in ("data", "has_more", "first_id", "last_id")}


def show_batch(request: HttpRequest, batch_id: str) -> dict[str, Any]:
    return batch_json(_find(request, batch_id), request)


def cancel_batch(request: HttpRequest, batch_id: str) -> dict[str, Any]:
    batch = _find(request, batch_id)
    if batch.status in ENDED:
        return batch_json(batch, request)
    return batch_json(service.cancel(batch, actor_of(request)), request)


def delete_batch(request: HttpRequest, batch_id: str) -> dict[str, Any]:
    batch = _find(request, batch_id)
    service.delete(batch, actor_of(request))
    return {"id": batch.id, "type": "message_batch_deleted"}


async def send_results(request: HttpRequest, batch_id: str) -> HttpResponseBase:
    batch = await sync_to_async(_find)(request, batch_id)
    file = batch.output_file
    if file is None or file.producer:
        if batch.status in ENDED:
            raise Refusal(404, "results_not_found", "This batch has no results.", param="batch_id")
        if file is None:
            raise Refusal(404, "results_not_ready", "This batch has no results yet.", param="batch_id")
        return StreamingHttpResponse(results.live(file), content_type="application/x-jsonl")
    path = await asyncio.to_thread(blobs.path_of, file.id)
    return await send_file(request, path, name=file.filename, content_type="application/x-jsonl", etag=file.sha256)


def _find(request: HttpRequest, batch_id: str) -> Batch:
    return service.find(batch_id, project_of(request), "anthropic")


batch_list = endpoint(GET=list_batches, POST=create_batch)
batch_detail = endpoint(GET=show_batch, DELETE=delete_batch)
batch_cancel = endpoint(POST=cancel_batch)
batch_results = endpoint(GET=send_results)
