"""Find chunks that nobody is going to finish, and send them again. Called by the scheduler every few seconds.

Four ways to be lost: the owner stopped its heartbeat, the chunk was given back and is due, Redis lost the message,
or the host is gone for good. The third shows as fewer messages on a host's queue than SQL has chunks for it; the
fourth as a host without a sign of life, whose chunks then move to a living one that has their model.

Silence is measured as :mod:`mlxplatform.jobs.silence` says, so that no clock, here or there, kills anybody.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import timedelta

import structlog
from django.db.models import Q
from django.utils import timezone

from mlxplatform.broker import queues
from mlxplatform.broker.connections import BROKER_ERRORS, sync_client
from mlxplatform.broker.dramatiq_broker import DRAMATIQ_NAMESPACE
from mlxplatform.inference import placement
from mlxplatform.jobs.silence import Silence
from mlxplatform.rows import chunks, placing
from mlxplatform.rows.chunks import Sending
from mlxplatform.rows.models import RowChunk
from mlxplatform.rows.sending import send

log = structlog.get_logger(__name__)

#: Seconds without a heartbeat after which a chunk's owner counts as dead. Owners beat every two seconds.
OWNER_SILENCE = 10.0
#: Seconds without a sign of life after which a host's waiting chunks move elsewhere: more than a restart takes.
HOST_SILENCE = 45.0
#: Seconds of silence that one look can add: two turns of the scheduler.
LOOK_MOST = 4.0
#: Seconds a message gets to show up on its queue before its absence means anything.
SENDING_GRACE = 5
#: Seconds nothing is ever put off for. What seems due later was put off before the clock was set back.
LONGEST_DELAY = 120


class Sweeper:
    """Remembers how long owners and hosts have been silent; everything else is in SQL."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._owners = Silence(LOOK_MOST, clock)
        self._hosts = Silence(LOOK_MOST, clock)
        self._looks = 0

    def sweep(self) -> int:
        """One pass; returns how many chunks were sent again. Safe to run in several processes at once."""
        self._looks += 1
        return _send(_orphans(self._silent_owners()) + _unsent() + self._homeless())

    def _silent_owners(self) -> list[tuple[str, int]]:
        running = RowChunk.objects.filter(state=RowChunk.State.RUNNING).values_list("id", "fence", "heartbeat_at")
        fences = {chunk: fence for chunk, fence, _ in running}
        silent = self._owners.look({chunk: (fence, beat) for chunk, fence, beat in running})
        return [(chunk, fence) for chunk, fence in fences.items() if silent[chunk] > OWNER_SILENCE]

    def _homeless(self) -> list[Sending]:
        """Move what waits for hosts that are gone to living ones; without a fitting one it goes on waiting."""
        waited_for = set(RowChunk.objects.filter(state=RowChunk.State.QUEUED).values_list("host", flat=True).distinct())
        if not waited_for:
            return []
        try:
            alive = placement.models_of_hosts()
        except BROKER_ERRORS:
            return []
        silent = self._hosts.look({host: self._looks if host in alive else None for host in waited_for})
        moved: list[Sending] = []
        for host in sorted(waited_for):
            if silent[host] > HOST_SILENCE:
                for chunk, fence in RowChunk.objects.filter(state=RowChunk.State.QUEUED, host=host).values_list("id", "fence"):
                    moved += _move(chunk, fence, alive)
        return moved


def reclaim(host: str) -> int:
    """A host's gpu process starts: what its predecessor was running or had fetched is free again at once."""
    mine = RowChunk.objects.filter(host=host)
    sendings = _orphans(mine.filter(state=RowChunk.State.RUNNING).values_list("id", "fence"))
    fresh = {sending.chunk for sending in sendings}
    fetched = mine.filter(state=RowChunk.State.QUEUED, sent_at__isnull=False).exclude(id__in=fresh)
    return _send(sendings + [Sending(*row) for row in fetched.values_list("id", "host", "fence")])


def _orphans(running: Iterable[tuple[str, int]]) -> list[Sending]:
    sendings: list[Sending] = []
    for chunk_id, fence in running:
        log.warning("rows.owner_lost", chunk=chunk_id, fence=fence)
        sendings += chunks.requeue_orphan(chunk_id, fence)
    return sendings


def _move(chunk: str, fence: int, alive: dict[str, frozenset[str]]) -> list[Sending]:
    model = chunks.model_of(chunk)
    fitting = sorted(host for host, models in alive.items() if model in models)
    if not fitting:
        return []
    target = min(fitting, key=lambda host: (placing.chunks_by_host(fitting).get(host, 0), host))
    log.warning("rows.moved", chunk=chunk, host=target)
    return chunks.move(chunk, fence, target)


def _unsent() -> list[Sending]:
    now = timezone.now()
    due = Q(due_at__lte=now) | Q(due_at__gt=now + timedelta(seconds=LONGEST_DELAY))
    queued = RowChunk.objects.filter(due, state=RowChunk.State.QUEUED)
    sendings = [Sending(*row) for row in queued.filter(sent_at=None).values_list("id", "host", "fence")]
    long_sent = Q(sent_at__lt=now - timedelta(seconds=SENDING_GRACE)) | Q(sent_at__gt=now + timedelta(seconds=SENDING_GRACE))
    settled: dict[str, list[Sending]] = defaultdict(list)
    for row in queued.filter(long_sent).values_list("id", "host", "fence"):
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
