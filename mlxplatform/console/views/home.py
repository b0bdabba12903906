"""Home: what the GPU does now, who waits and why, and what failed last; and the playground's page."""

from __future__ import annotations

import json
from typing import Any

from django.conf import settings
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from mlxplatform.accounts.scopes import INFERENCE, READ
from mlxplatform.broker import queues
from mlxplatform.broker.connections import BROKER_ERRORS, sync_client
from mlxplatform.console import waiting
from mlxplatform.console.page import identity_of, page, seen
from mlxplatform.inference.models import Host
from mlxplatform.jobs.models import Job, QueuePause
from mlxplatform.jobs.states import FAILED, QUEUED, RUNNING, WAITING
from mlxplatform.retention import policy

#: Rows of each short list on the page.
_SHOWN = 6


@page(READ)
def home(request: HttpRequest) -> HttpResponse:
    jobs = seen(request, Job.objects.all())
    counts = dict(jobs.filter(state__in=[QUEUED, RUNNING, WAITING]).values_list("state").annotate(n=Count("id")))
    # By state, each from its index, rather than one sort over all live rows: a long queue must not slow the page.
    active = [job for state in (RUNNING, WAITING, QUEUED) for job in _oldest(jobs, state)][:_SHOWN]
    hosts = _hosts()
    held = waiting.leases(host["name"] for host in hosts)
    for host in hosts:
        host["lease"] = next((one for one in held if one["host"] == host["name"]), None)
    why = waiting.reasons(active, held)
    for job in active:
        job.why = why.get(job.id, "")  # type: ignore[attr-defined]
    context = {
        "title": "Home",
        "hosts": hosts,
        "counts": {"running": counts.get(RUNNING, 0), "queued": counts.get(QUEUED, 0), "waiting": counts.get(WAITING, 0)},
        "active": active,
        "held": QueuePause.objects.order_by("queue"),
        "failures": jobs.filter(state=FAILED).order_by("-created_at", "-id")[:_SHOWN],
        "mine": {job.id for job in active} | set(_mine(request, held)),
        "open": settings.ENV.auth == "auto" and identity_of(request).is_admin and not _keys_exist(),
    }
    return render(request, "console/home.html", context)


def _oldest(jobs: Any, state: str) -> list[Job]:
    return list(jobs.filter(state=state).order_by("created_at", "id")[:_SHOWN])


def _mine(request: HttpRequest, held: list[dict[str, Any]]) -> list[str]:
    """Which of the jobs named by the leases this person may open."""
    named = [one["job"] for state in held for one in (*state["holders"], *state["waiters"]) if one.get("job")]
    return list(seen(request, Job.objects.filter(pk__in=named)).values_list("id", flat=True)) if named else []


def _keys_exist() -> bool:
    from mlxplatform.accounts.keys import any_key_exists

    return any_key_exists()


@page(INFERENCE)
def chat(request: HttpRequest) -> HttpResponse:
    return render(
        request, "console/chat.html", {"title": "Chat", "days": policy.current().history_days, "stores": settings.ENV.store}
    )


def _hosts() -> list[dict[str, Any]]:
    """Every known GPU host with its live state, or with ``live`` None when it is silent."""
    names = list(Host.objects.order_by("name").values_list("name", flat=True))
    try:
        states: Any = sync_client().mget([queues.host_key(name) for name in names]) if names else []
    except BROKER_ERRORS:
        states = [None] * len(names)
    return [{"name": name, "live": json.loads(raw) if raw else None} for name, raw in zip(names, states, strict=True)]
