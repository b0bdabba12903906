"""``/api/webhooks``: who is told about ended jobs and batches."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction
from django.http import HttpRequest

from mlxplatform.accounts import audit
from mlxplatform.http.body import read_json
from mlxplatform.http.views import endpoint
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import queries
from mlxplatform.jobs.views import actor_of
from mlxplatform.jobs.wire import time_text
from mlxplatform.webhooks import addresses, service
from mlxplatform.webhooks.models import Delivery, Webhook

FIELDS = {"url", "events", "job"}
#: Most webhooks of one project.
LIMIT = 100
#: Deliveries shown.
SHOWN = 50


def webhook_json(hook: Webhook, *, secret: bool = False) -> dict[str, Any]:
    shown = {
        "id": hook.id,
        "url": hook.url,
        "events": hook.events or list(service.EVENTS),
        "job": hook.job or None,
        "active": hook.active,
        "created_at": time_text(hook.created_at),
    }
    return {**shown, "secret": hook.secret} if secret else shown


def delivery_json(delivery: Delivery) -> dict[str, Any]:
    return {
        "id": delivery.id,
        "type": delivery.type,
        "state": delivery.state,
        "attempts": delivery.attempts,
        "answer": delivery.answer,
        "created_at": time_text(delivery.created_at),
        "due_at": time_text(delivery.due_at) if delivery.state == Delivery.PENDING else None,
        "ended_at": time_text(delivery.ended_at),
    }


def list_webhooks(request: HttpRequest) -> dict[str, Any]:
    hooks = Webhook.objects.filter(project=request.project)  # type: ignore[attr-defined]
    return {"ok": True, "webhooks": [webhook_json(hook) for hook in hooks]}


async def create_webhook(request: HttpRequest) -> dict[str, Any]:
    return await sync_to_async(_create)(request, await read_json(request))


def _create(request: HttpRequest, body: dict[str, Any]) -> dict[str, Any]:
    for name in body:
        if name not in FIELDS:
            raise Refusal(400, "unknown_field", f"the fields are {', '.join(sorted(FIELDS))}", param=name[:60])
    by = actor_of(request)
    hook = Webhook(project=request.project, created_by=by)  # type: ignore[attr-defined]
    hook.url = addresses.check(body.get("url"), private_allowed=service.may_be_private(hook))
    events = body.get("events")
    if events is not None and not (isinstance(events, list) and events and all(one in service.EVENTS for one in events)):
        raise Refusal(400, "invalid_value", f"events must be a list of {', '.join(service.EVENTS)}", param="events")
    hook.events = events or []
    job = body.get("job")
    if job is not None and not (isinstance(job, str) and queries.visible(request).filter(pk=job).exists()):
        raise Refusal(404, "job_not_found", "job not found", param="job")
    hook.job = job or ""
    if Webhook.objects.filter(project=hook.project, active=True).count() >= LIMIT:
        raise Refusal(400, "too_many_webhooks", f"a project has at most {LIMIT} webhooks", param="url")
    with transaction.atomic():
        hook.save()
        audit.record(by, "webhook.create", hook.id, project=hook.project, after={"url": hook.url, "events": hook.events})
    return {"ok": True, "webhook": webhook_json(hook, secret=True)}


def show_webhook(request: HttpRequest, webhook_id: str) -> dict[str, Any]:
    hook = _find(request, webhook_id)
    return {
        "ok": True,
        "webhook": webhook_json(hook),
        "deliveries": [delivery_json(one) for one in hook.deliveries.all()[:SHOWN]],
    }


def delete_webhook(request: HttpRequest, webhook_id: str) -> dict[str, Any]:
    hook = _find(request, webhook_id)
    with transaction.atomic():
        hook.delete()
        audit.record(actor_of(request), "webhook.delete", webhook_id, project=hook.project, before={"url": hook.url})
    return {"ok": True}


def _find(request: HttpRequest, webhook_id: str) -> Webhook:
    hook = Webhook.objects.filter(pk=webhook_id, project=request.project).first()  # type: ignore[attr-defined]
    if hook is None:
        raise Refusal(404, "webhook_not_found", "webhook not found")
    return hook


webhook_list = endpoint(GET=list_webhooks, POST=create_webhook)
webhook_detail = endpoint(GET=show_webhook, DELETE=delete_webhook)
