"""Find chunks that nobody is going to finish, and send them again. Called by the scheduler every few seconds.

Three ways to be lost: the owner stopped its heartbeat, the chunk was given back and is due, or Redis lost the
message. The last shows as fewer messages on a host's queue than SQL has chunks for it.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta

import structlog
from django.db.models import QuerySet
from django.utils import timezone

from mlxplatform.broker import queues
from mlxplatform.broker.connections import BROKER_ERRORS, sync_client
from mlxplatform.broker.dramatiq_broker import DRAMATIQ_NAMESPACE
from mlxplatform.rows import chunks
from mlxplatform.rows.chunks import Sending
from mlxplatform.rows.models import RowChunk
from mlxplatform.rows.sending import send

log = structlog.get_logger(__name__)

#: Seconds without a heartbeat after which a chunk's owner counts as dead. Owners beat every half second.
OWNER_SILENCE = 10
#: Seconds a message gets to show up on its queue before its absence means anything.
SENDING_GRACE = 5


def sweep() -> int:
    """One pass; returns how many chunks were sent again. Safe to run in several processes at once."""
    sendings = _orphans(RowChunk.objects.filter(heartbeat_at__lt=timezone.now() - timedelta(seconds=OWNER_SILENCE)))
    sendings += _unsent()
    return _send(sendings)


def reclaim(host: str) -> int:
    """A host's gpu process starts: whatever its predecessor was running is free again at once."""
    return _send(_orphans(RowChunk.objects.filter(host=host)))


def _orphans(candidates: QuerySet[RowChunk]) -> list[Sending]:
    sendings: list[Sending] = []
    for chunk_id, fence in candidates.filter(state=RowChunk.State.RUNNING).values_list("id", "fence"):
        log.warning("rows.owner_lost", chunk=chunk_id, fence=fence)
        sendings += chunks.requeue_orphan(chunk_id, fence)
    return sendings


def _unsent() -> list[Sending]:
    now = timezone.now()
    queued = RowChunk.objects.filter(state=RowChunk.State.QUEUED, due_at__lte=now)
    sendings = [Sending(*row) for row in queued.filter(sent_at=None).values_list("id", "host", "fence")]
    settled: dict[str, list[Sending]] = defaultdict(list)
    for row in queued.filter(sent_at__lt=now - timedelta(seconds=SENDING_GRACE)).values_list("id", "host", "fence"):
        settled[row[1]].append(Sending(*row))
    for host, waiting in settled.items():
        try:
            present = int(sync_client().hlen(f"{DRAMATIQ_NAMESPACE}:{queues.rows(host)}.msgs"))
        except BROKER_ERRORS:
            return []
        expected = queued.filter(host=host, sent_at__isnull=False).count()
        if present < expected:
            log.warning("rows.messages_lost", host=host, present=present, expected=expected)
            sendings += waiting
    return sendings


def _send(sendings: list[Sending]) -> int:
    sent = send(sendings)
    RowChunk.objects.filter(id__in=[s.chunk for s in sendings[:sent]]).update(sent_at=timezone.now())
    return sent
