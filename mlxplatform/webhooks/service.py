"""Making news and delivering it."""

from __future__ import annotations

import datetime as dt
import functools
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import structlog
from django.contrib.auth import get_user_model
from django.db import connection
from django.utils import timezone

from mlxplatform.accounts.people import scopes_of
from mlxplatform.accounts.scopes import ADMIN
from mlxplatform.jobs.models import Job
from mlxplatform.webhooks import addresses, signing
from mlxplatform.webhooks.models import Delivery, Webhook, new_event_id

log = structlog.get_logger(__name__)

#: Every event there is.
EVENTS = (
    "job.done",
    "job.failed",
    "job.cancelled",
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
)
#: Seconds before each further attempt; the list's end is the end of trying (about 11 hours).
RETRIES = (5, 30, 120, 600, 3600, 10800, 21600)
#: Seconds a receiver has to answer.
TIMEOUT = 10.0
#: Addresses of one name tried in a delivery.
ADDRESSES = 2
#: Deliveries on their way at once, and taken in one round.
SENDERS, ROUND = 8, 32
#: Seconds a taken delivery is nobody else's; more than a round can last.
CLAIM = ROUND / SENDERS * TIMEOUT * 2
#: Ended deliveries are kept this long.
KEPT = dt.timedelta(days=7)


def emit(event: str, object_id: str, project: str, *, job: str = "", **facts: Any) -> None:
    """Note an event for everybody who wants it, in the caller's transaction."""
    created = int(time.time())
    for hook in Webhook.objects.filter(project=project, active=True, job__in=["", job]):
        if hook.events and event not in hook.events:
            continue
        event_id = new_event_id()
        body = {"id": event_id, "object": "event", "created_at": created, "type": event, "data": {"id": object_id, **facts}}
        Delivery.objects.create(id=event_id, webhook=hook, type=event, body=msgspec.json.encode(body).decode())
        if hook.job:
            Webhook.objects.filter(pk=hook.id).update(active=False)


def job_ended(job: Job) -> None:
    """Listener of ended jobs."""
    emit(f"job.{job.state}", job.id, job.project, job=job.id, kind=job.kind)


def deliver_due() -> int:
    """Send what is due; returns how many were accepted. Two of these at once share the work."""
    now = timezone.now()
    due = Delivery.objects.filter(state=Delivery.PENDING, due_at__lte=now).order_by("due_at")
    taken = []
    for delivery in due.select_related("webhook")[:ROUND]:
        claim = now + dt.timedelta(seconds=CLAIM)
        won = Delivery.objects.filter(pk=delivery.id, due_at=delivery.due_at, state=Delivery.PENDING).update(due_at=claim)
        if won:
            taken.append(delivery)
    if not taken:
        Delivery.objects.exclude(state=Delivery.PENDING).filter(ended_at__lt=now - KEPT).delete()
        return 0
    with ThreadPoolExecutor(SENDERS, thread_name_prefix="webhook") as senders:
        return sum(senders.map(_deliver, taken))


def _deliver(delivery: Delivery) -> bool:
    try:
        answer = _post(delivery)
        accepted = answer.isdigit() and 200 <= int(answer) < 300
        _note(delivery, answer, accepted)
        return accepted
    finally:
        connection.close()


def _post(delivery: Delivery) -> str:
    """The status of the answer, or why there was none."""
    hook, body = delivery.webhook, delivery.body.encode()
    url = httpx.URL(hook.url)
    found = addresses.resolve(url.host, url.port or 0, private_allowed=may_be_private(hook))
    if not found:
        return "the address is not public"
    headers = {**signing.headers(hook.secret, delivery.id, int(time.time()), body), "content-type": "application/json"}
    answer = "the connection failed"
    for address in found[:ADDRESSES]:
        answer = _post_to(address, url, headers, body)
        if answer != "the connection failed":
            break
    return answer


def _post_to(address: str, url: httpx.URL, headers: dict[str, str], body: bytes) -> str:
    """Send to this very address, as the name: the certificate and the Host header are the name's."""
    named = {**headers, "host": url.netloc.decode("ascii")}
    try:
        # No proxy from the environment: it would look the name up for itself.
        with httpx.Client(timeout=TIMEOUT, follow_redirects=False, trust_env=False, verify=_certificates()) as client:
            request = client.build_request(
                "POST", url.copy_with(host=address), content=body, headers=named, extensions={"sni_hostname": url.host}
            )
            response = client.send(request, stream=True)  # the answer's body is nobody's business and may be endless
            response.close()
            return str(response.status_code)
    except httpx.TimeoutException:
        return f"no answer within {TIMEOUT:.0f} s"
    except (httpx.HTTPError, httpx.InvalidURL, OSError):
        return "the connection failed"


@functools.cache
def _certificates() -> ssl.SSLContext:
    return httpx.create_ssl_context()


def may_be_private(hook: Webhook) -> bool:
    """Only who owns the machine, the keyless user or an administrator signed in, may make it call into its own network."""
    if hook.created_by == "local":
        return True
    kind, _, name = hook.created_by.partition(":")
    user = get_user_model().objects.filter(username=name).first() if kind == "user" else None
    return user is not None and ADMIN in scopes_of(user)


def _note(delivery: Delivery, answer: str, accepted: bool) -> None:
    attempts = delivery.attempts + 1
    changes: dict[str, Any] = {"attempts": attempts, "answer": answer[:120]}
    if accepted:
        changes.update(state=Delivery.DELIVERED, ended_at=timezone.now())
    elif attempts > len(RETRIES):
        changes.update(state=Delivery.FAILED, ended_at=timezone.now())
    else:
        changes["due_at"] = timezone.now() + dt.timedelta(seconds=RETRIES[attempts - 1])
    Delivery.objects.filter(pk=delivery.id).update(**changes)
    log.info("webhook_answered", webhook=delivery.webhook_id, event_id=delivery.id, answer=answer, attempt=attempts)
