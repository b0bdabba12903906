"""``/health``, ``/livez``, ``/readyz``, ``/stats`` and ``/v1``: what the hosts say of themselves, read from their live state.

``/health`` is one exact object while an engine is well, so that probes of mlx_lm.server keep working; everything else
is 503. None of these loads a model or waits for one.
"""

from __future__ import annotations

import asyncio
from typing import Any

from django.db import DatabaseError
from django.db.models import Count
from django.http import HttpRequest, HttpResponse

from mlxplatform.broker.connections import BROKER_ERRORS
from mlxplatform.http.errors import json_response
from mlxplatform.http.views import endpoint
from mlxplatform.inference import history
from mlxplatform.inference.models import Host
from mlxplatform.inference.placement import HostState, live_hosts
from mlxplatform.jobs.models import Worker

#: Seconds the database may take before it counts as down.
DATABASE_PATIENCE = 2.0
#: Engine states in which requests are answered; an absent engine starts when it is asked.
WELL = {"ready", "loading", "starting", "absent"}


async def _hosts() -> tuple[HostState, ...] | None:
    """The live hosts, None when the broker is down."""
    try:
        return await live_hosts()
    except BROKER_ERRORS:
        return None


def trouble(hosts: tuple[HostState, ...] | None) -> str | None:
    """Why requests would not be answered now, None when they would."""
    if hosts is None:
        return "broker_unavailable"
    if not hosts:
        return "engine_unavailable"
    if not any(host.engine_state in WELL for host in hosts):
        return f"engine_{hosts[0].engine_state}"
    return None


def current_model(hosts: tuple[HostState, ...]) -> str | None:
    """The chat model that answers for unknown names."""
    return next((model.id for host in hosts for model in host.models if model.current and model.kind == "chat"), None)


async def health(request: HttpRequest) -> HttpResponse:
    reason = trouble(await _hosts())
    if reason is None:
        return json_response({"status": "ok"})
    return json_response({"status": "unavailable", "reason": reason}, 503, {"Retry-After": "2"})


async def ready(request: HttpRequest) -> HttpResponse:
    hosts = await _hosts()
    queues = await _manned_queues()
    reason = "database_unavailable" if queues is None else trouble(hosts)
    body = {
        "status": "ok" if reason is None else "unavailable",
        "database": "ok" if queues is not None else "down",
        "broker": "ok" if hosts is not None else "down",
        "workers": queues or {},
        "hosts": {host.name: host.engine_state for host in hosts or ()},
    }
    if reason is not None:
        body["reason"] = reason
    return json_response(body, 200 if reason is None else 503)


async def _manned_queues() -> dict[str, int] | None:
    """Live worker processes by the queue of jobs they serve; None when the database does not answer."""
    try:
        async with asyncio.timeout(DATABASE_PATIENCE):
            rows = Worker.objects.values_list("queue").annotate(n=Count("id")).order_by("queue")
            return {queue: number async for queue, number in rows}
    except (DatabaseError, TimeoutError):
        return None


async def live(request: HttpRequest) -> dict[str, str]:
    """Whether this process answers, whatever else is down: what restarts it should ask this, not ``/health``."""
    return {"status": "alive"}


async def stats(request: HttpRequest) -> dict[str, Any]:
    hosts = await _hosts()
    states = [{**host.raw, "host": host.name} for host in hosts or ()]
    return {
        "status": trouble(hosts) or "ok",
        "hosts": states,
        "active": sum(host.active for host in hosts or ()),
        "waiting": sum(host.waiting for host in hosts or ()),
        "response_store": await history.off_loop(history.statistics),
        "models": {
            "current": current_model(hosts or ()),
            "resident": [model.id for host in hosts or () for model in host.models if model.resident],
        },
    }


async def host_list(request: HttpRequest) -> dict[str, Any]:
    """Every host that ever announced itself; ``live`` is what it says of itself now, null while it is silent."""
    live = {host.name: host.raw for host in await _hosts() or ()}
    known = [host async for host in Host.objects.all()]
    return {
        "ok": True,
        "hosts": [
            {
                "name": host.name,
                "models": host.models,
                "free_bytes": host.free_bytes,
                "started_at": host.started_at.isoformat(),
                "heartbeat_at": host.heartbeat_at.isoformat() if host.heartbeat_at else None,
                "live": live.get(host.name),
            }
            for host in known
        ],
    }


async def index(request: HttpRequest) -> dict[str, Any]:
    hosts = await _hosts() or ()
    return {
        "name": "mlx-platform",
        "version": "0.1.0",
        "model": current_model(hosts),
        "endpoints": ["/v1/chat/completions", "/v1/models", "/health", "/stats", "/api/jobs"],
    }


health_view = endpoint(GET=health)
ready_view = endpoint(GET=ready)
live_view = endpoint(GET=live)
stats_view = endpoint(GET=stats)
index_view = endpoint(GET=index)
hosts_view = endpoint(GET=host_list)
