"""Home: what the GPU does now, who waits and why, and what failed last."""

from __future__ import annotations

import json
from typing import Any

import redis
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from mlxplatform.accounts.scopes import INFERENCE, READ
from mlxplatform.broker import queues
from mlxplatform.broker.connections import sync_client
from mlxplatform.console.page import page
from mlxplatform.inference.models import Host
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.states import FAILED, QUEUED, RUNNING, WAITING

#: Rows of each short list on the page.
_SHOWN = 6


@page(READ)
def home(request: HttpRequest) -> HttpResponse:
    counts = dict(Job.objects.filter(state__in=[QUEUED, RUNNING, WAITING]).values_list("state").annotate(n=Count("id")))
    context = {
        "title": "Home",
        "hosts": _hosts(),
        "counts": {"running": counts.get(RUNNING, 0), "queued": counts.get(QUEUED, 0), "waiting": counts.get(WAITING, 0)},
        "active": Job.objects.filter(state__in=[RUNNING, WAITING, QUEUED]).order_by("-priority", "created_at")[:_SHOWN],
        "failures": Job.objects.filter(state=FAILED).order_by("-ended_at")[:_SHOWN],
    }
    return render(request, "console/home.html", context)


@page(INFERENCE)
def chat(request: HttpRequest) -> HttpResponse:
    return render(request, "console/chat.html", {"title": "Chat"})


def _hosts() -> list[dict[str, Any]]:
    """Every known GPU host with its live state, or with ``live`` None when it is silent."""
    names = list(Host.objects.order_by("name").values_list("name", flat=True))
    try:
        states = sync_client().mget([queues.host_key(name) for name in names]) if names else []
    except redis.RedisError:
        states = [None] * len(names)
    return [{"name": name, "live": json.loads(raw) if raw else None} for name, raw in zip(names, states, strict=True)]
