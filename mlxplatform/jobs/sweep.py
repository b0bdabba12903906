"""What the scheduler does for jobs, a few times a second: find dead owners, lost messages, due work, late work.

Whether a worker is dead is judged by its beat count standing still on *this* process's monotonic clock, so that
wrong clocks, here or there, kill nobody; or at once by its process id being gone, on the same machine.
"""

from __future__ import annotations

import os
import time

import structlog
from django.db import transaction
from django.utils import timezone

from mlxplatform.broker.connections import BROKER_ERRORS, sync_client
from mlxplatform.broker.dramatiq_broker import DRAMATIQ_NAMESPACE
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import kinds, moves, service, wake
from mlxplatform.jobs.models import Job, Worker
from mlxplatform.jobs.pulse import machine
from mlxplatform.jobs.states import CANCELLED, CANCELLING, FAILED, LIVE, PAUSED, QUEUED, RUNNING, TERMINAL, WAITING, ZOMBIE

log = structlog.get_logger(__name__)

#: Seconds without a beat after which a worker is dead. Ten beats: a loaded machine misses a few.
OWNER_TTL = 20.0
#: Claims after which a job is given up even though each made some progress: a bound on endless dying.
MAX_CLAIMS = 100
#: Messages re-sent for one queue in one sweep. The worker takes the rest as it finishes these.
RESEND = 32


class Sweeper:
    """Remembers each worker's last beat between sweeps; everything else is in SQL."""

    def __init__(self) -> None:
        self._beats: dict[str, tuple[int, float]] = {}

    def sweep(self) -> None:
        dead = self.dead_workers()
        if dead:
            Worker.objects.filter(pk__in=dead).delete()
            log.warning("workers_dead", workers=dead)
        self.revive_orphans()
        self.settle_waiting()
        self.fail_late()
        self.resend()

    def dead_workers(self) -> list[str]:
        now, here = time.monotonic(), machine()
        seen: dict[str, tuple[int, float]] = {}
        dead = []
        for worker in Worker.objects.all():
            beats, since = self._beats.get(worker.id, (-1, now))
            seen[worker.id] = (worker.beats, since if worker.beats == beats else now)
            if (worker.machine == here and not _is_running(worker.pid)) or now - seen[worker.id][1] > OWNER_TTL:
                dead.append(worker.id)
        self._beats = {worker_id: beat for worker_id, beat in seen.items() if worker_id not in dead}
        return dead

    def revive_orphans(self) -> None:
        """Jobs whose owner is not among the living: made zombies, then decided by the kind's policy."""
        alive = Worker.objects.values("id")
        for job in Job.objects.filter(state__in=LIVE).exclude(owner="").exclude(owner__in=alive):
            try:
                with transaction.atomic():
                    self._bury(job)
            except moves.MoveRefused:
                continue  # its worker ended it while we looked
        for job in Job.objects.filter(state=ZOMBIE):
            self._decide(job)

    def _bury(self, job: Job) -> None:
        holder = moves.Holder(job.owner, job.fence)
        if job.state == CANCELLING:
            moves.move(job.id, CANCELLED, holder=holder, by="scheduler")
            return
        # The fence moves on with the owner's death, so that a stopped process that wakes writes nothing.
        moves.move(job.id, ZOMBIE, holder=holder, by="scheduler", fence=job.fence + 1, owner="")
        job.refresh_from_db()
        self._decide(job)

    def _decide(self, job: Job) -> None:
        # A kind of an app that is no longer installed dies by the usual policy.
        policy = kinds.get(job.kind) if job.kind in kinds.names() else kinds.JobKind(job.kind, "")
        deaths = 1 if job.progress > job.claimed_progress else job.deaths + 1
        try:
            if deaths >= policy.max_deaths or job.attempts >= MAX_CLAIMS:
                error = f"the worker running it died {deaths} times in a row without progress"
                ended = moves.move(
                    job.id, FAILED, expect={ZOMBIE}, by="scheduler", deaths=deaths, error=error, error_code="poisoned"
                )
                service.settle_dependents(ended)
                log.error("job_poisoned", job=job.id, kind=job.kind, deaths=deaths, attempts=job.attempts)
            else:
                moves.move(job.id, QUEUED, expect={ZOMBIE}, by="scheduler", deaths=deaths, due_at=timezone.now())
                log.warning("job_requeued", job=job.id, kind=job.kind, deaths=deaths, attempts=job.attempts)
        except moves.MoveRefused:
            return  # cancelled by a person in between

    def settle_waiting(self) -> None:
        """Dependencies that ended while nobody told their dependents."""
        for waiter in Job.objects.filter(state=WAITING, owner="", after__state__in=TERMINAL).distinct():
            try:
                service.settle(waiter)
            except moves.MoveRefused:
                continue

    def fail_late(self) -> None:
        """Jobs past their deadline that are not running; the running ones are cancelled."""
        # Named states, not "all but the ended": only so does the index keep a hundred thousand ended jobs out.
        late = Job.objects.filter(state__in=[QUEUED, WAITING, RUNNING, PAUSED], deadline_at__lt=timezone.now())
        for job in late:
            try:
                if job.owner:
                    service.cancel(job.id, by="deadline")
                else:
                    error = "it did not end before its deadline"
                    moves.move(job.id, FAILED, expect={job.state}, by="scheduler", error=error, error_code="deadline_exceeded")
            except (moves.MoveRefused, Refusal):
                continue  # it ended while we looked

    def resend(self) -> None:
        """Queues with due jobs but without any message: Redis lost them, was down, or the jobs were not due before.

        A queue that still holds messages is left alone; its workers look at SQL with each of them.
        """
        due = Job.objects.filter(state=QUEUED, due_at__lte=timezone.now())
        for queue in list(due.order_by().values_list("queue", flat=True).distinct()):
            try:
                if sync_client().llen(f"{DRAMATIQ_NAMESPACE}:{queue}"):
                    continue
            except BROKER_ERRORS:
                return
            for job in moves.claimable(queue)[:RESEND]:
                if not wake.worker(job):
                    return


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
