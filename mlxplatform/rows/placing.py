"""Which host gets the next chunk: one that is alive and has the model, with the least row work waiting."""

from __future__ import annotations

from collections.abc import Collection

import structlog
from django.conf import settings
from django.db.models import Count

from mlxplatform.broker.connections import BROKER_ERRORS
from mlxplatform.inference.placement import live_hosts
from mlxplatform.rows.chunks import LIVE
from mlxplatform.rows.models import RowChunk
from mlxplatform.rows.sqlthread import SqlThread

log = structlog.get_logger(__name__)


async def host_for(model: str, sql: SqlThread) -> str:
    """The host for a chunk of ``model``; this machine's own when none is alive, where the chunk then waits."""
    try:
        names = [host.name for host in await live_hosts() if any(served.id == model for served in host.models)]
    except BROKER_ERRORS as error:
        log.debug("rows.placing_blind", error=str(error))
        names = []
    if len(names) > 1:
        waiting = await sql(chunks_by_host, names)
        return min(names, key=lambda name: (waiting.get(name, 0), name))
    return names[0] if names else str(settings.ENV.host_id)


def chunks_by_host(names: Collection[str]) -> dict[str, int]:
    counted = RowChunk.objects.filter(host__in=names, state__in=LIVE).values_list("host").annotate(chunks=Count("id"))
    return dict(counted)
