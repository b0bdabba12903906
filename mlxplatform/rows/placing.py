"""Which host gets the next chunk: one that is alive and has the model, with the least row work waiting."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db.models import Count
from django.utils import timezone

from mlxplatform.broker import queues
from mlxplatform.rows.models import RowChunk


def host_for(model: str) -> str:
    """The host for a chunk of ``model``; this machine's own when none is alive, where the chunk then waits."""
    from mlxplatform.inference.models import Host

    alive = timezone.now() - timedelta(seconds=queues.HOST_TTL)
    names = [host.name for host in Host.objects.filter(heartbeat_at__gte=alive) if has_model(host.models or [], model)]
    if not names:
        return str(settings.ENV.host_id)
    if len(names) == 1:
        return names[0]
    waiting = dict(
        RowChunk.objects.filter(host__in=names, state__in=(RowChunk.State.QUEUED, RowChunk.State.RUNNING))
        .values_list("host")
        .annotate(chunks=Count("id"))
    )
    return min(names, key=lambda name: (waiting.get(name, 0), name))


def has_model(entries: list[Any], model: str) -> bool:
    """Whether a host's published list, of ids or of objects with an id, names the model."""
    return any((entry.get("id") if isinstance(entry, dict) else entry) == model for entry in entries)
