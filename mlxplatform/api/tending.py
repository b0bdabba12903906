"""Ends stored answers whose own web process died: from their log when they ended in it, as failed when they are lost.

A reader would do the same when it comes; this does it while the log still exists, which is an hour after its last
event. Several web processes may tend at once: an answer is ended by compare-and-set.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import structlog
from django.db import DatabaseError
from django.utils import timezone

from mlxplatform.api.openai.chat import stored as chat
from mlxplatform.api.openai.responses import store as responses
from mlxplatform.broker.connections import BROKER_ERRORS
from mlxplatform.inference import history
from mlxplatform.inference.history import Kind
from mlxplatform.inference.models import StoredAnswer
from mlxplatform.inference.recording import LOST_AFTER

log = structlog.get_logger(__name__)

#: Seconds between two looks.
PERIOD = 30.0
#: Rows of one look.
MOST = 200

SETTLE = {Kind.RESPONSE: responses.streams.settled, Kind.CHAT: chat.streams.settled}


async def keep() -> None:
    """Look for ever."""
    while True:
        await asyncio.sleep(PERIOD)
        try:
            await look()
        except (*BROKER_ERRORS, DatabaseError) as error:
            log.warning("unfinished answers not looked at", error=str(error))
        except Exception:  # a row that cannot be ended must not end the looking
            log.exception("unfinished answers not looked at")


async def look() -> None:
    """Settle every unfinished answer that is old enough to be lost."""
    for row in await history.off_loop(_unfinished):
        settle = SETTLE.get(Kind(row.kind))
        if settle is not None:
            await settle(row)


def _unfinished() -> list[StoredAnswer]:
    before = timezone.now() - timedelta(seconds=LOST_AFTER)
    rows = StoredAnswer.objects.filter(status__in=history.OPEN, created_at__lt=before)
    return list(rows.order_by("created_at")[:MOST])
