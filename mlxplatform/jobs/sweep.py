"""What the scheduler does for jobs, a few times a second: find dead owners, lost messages, due work, late work.

Whether a worker is dead is judged by its beat count standing still (:mod:`mlxplatform.jobs.silence`); or at once by
its process id being gone, on the same machine.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from django.db import DatabaseError, transaction
from django.utils import timezone

from mlxplatform.broker.connections import BROKER_ERRORS, sync_client
from mlxplatform.broker.dramatiq_broker import DRAMATIQ_NAMESPACE
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import kinds, moves, service, wake
from mlxplatform.jobs.models import Job, Worker
from mlxplatform.jobs.pulse import machine
from mlxplatform.jobs.silence import Silence
from mlxplatform.jobs.states import CANCELLED, CANCELLING, FAILED, LIVE, PAUSED, QUEUED, RUNNING, TERMINAL, WAITING, ZOMBIE

log = structlog.get_logger(__name__)

#: Seconds without a beat after which a worker is dead. Ten beats: a loaded machine misses a few.
OWNER_TTL = 20.0
#: Messages re-sent for one queue in one sweep. The worker takes the rest as it finishes these.
RESEND = 32
#: Seconds of silence that one look can add: a few turns of the scheduler.
LOOK_MOST = 5.0
#: Seconds the wall clock may differ from the steady one between sweeps before it counts as set.
CLOCK_SET = 2.0
#: Seconds before a job whose end failed for a defect is tried again, doubled each time up to the second.
DEFECT_DELAY, DEFECT_DELAY_MOST = 1.0, 60.0


class Sweeper:
    """Remembers each worker's silence between sweeps; everything else is in SQL.

    Every job is handled for itself: one whose ``ended`` hook raises is logged and tried again later and later, and
    the others never notice.
    """

    def __init__(self, clock: Callable[[], float] | None = None, wall: Callable[[], float] = time.time) -> None:
        self._clock, self._wall = clock or time.monotonic, wall
        self._offset = self._wall() - self._clock()
        self._silence = Silence(LOOK_MOST, clock)
        self._defects: dict[str, tuple[float, float]] = {}

    def sweep(self) -> None:
        self._mind_the_clock()
        dead = self.dead_workers()
        if dead:
            Worker.objects.filter(pk__in=dead).delete()
            log.warning("workers_dead", workers=dead)
        self.revive_orphans()
        self.settle_waiting()
        self.fail_late()
        self.resend()

    def _mind_the_clock(self) -> None:
        """When the wall clock was set back, what had been due must not wait until it is due again."""
        offset = self._wall() - self._clock()
        back, self._offset = self._offset - offset, offset
        if back > CLOCK_SET:
            now = timezone.now()
            before = now + dt.timedelta(seconds=back)
            due = Job.objects.filter(state=QUEUED, due_at__gt=now, due_at__lte=before).update(due_at=now)
            log.warning("clock_set_back", seconds=round(back, 1), jobs=due)

    def dead_workers(self) -> list[str]:
        here, workers = machine(), list(Worker.objects.all())
        silent = self._silence.look({worker.id: worker.beats for worker in workers})
        gone = [worker.id for worker in workers if worker.machine == here and not _is_running(worker.pid)]
        return gone + [name for name, seconds in silent.items() if seconds > OWNER_TTL and name not in gone]

    @contextmanager
    def _alone(self, job_id: str) -> Iterator[None]:
        """What fails for one job stays with it."""
        try:
            yield
        except (moves.MoveRefused, Refusal):
            pass  # its worker, or a person, moved it while we looked
        except DatabaseError:
            raise  # everybody's trouble: the next sweep tries again
        except Exception:
            # A defect in a hook of its kind.
            _, delay = self._defects.get(job_id, (0.0, DEFECT_DELAY / 2))
            delay = min(delay * 2, DEFECT_DELAY_MOST)
            self._defects[job_id] = (self._clock() + delay, delay)
            log.exception("job_sweep_failed", job=job_id, again_in=delay)
        else:
            self._defects.pop(job_id, None)

    def _put_off(self, job_id: str) -> bool:
        return self._clock() < self._defects.get(job_id, (0.0, 0.0))[0]

    def revive_orphans(self) -> None:
        """Jobs whose owner is not among the living: made zombies, then decided by the kind's policy."""
        alive = Worker.objects.values("id")
        for job in Job.objects.filter(state__in=LIVE).exclude(owner="").exclude(owner__in=alive):
            if not self._put_off(job.id):
                with self._alone(job.id), transaction.atomic():
                    self._bury(job)
        for job in Job.objects.filter(state=ZOMBIE):
            if not self._put_off(job.id):
                with self._alone(job.id):
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
        if deaths >= policy.max_deaths or job.attempts >= moves.MAX_CLAIMS:
            error = f"the worker running it died {deaths} times in a row without progress"
            ended = moves.move(job.id, FAILED, expect={ZOMBIE}, by="scheduler", deaths=deaths, error=error, error_code="poisoned")
            service.settle_dependents(ended)
            log.error("job_poisoned", job=job.id, kind=job.kind, deaths=deaths, attempts=job.attempts)
        else:
            moves.move(job.id, QUEUED, expect={ZOMBIE}, by="scheduler", deaths=deaths, due_at=timezone.now())
            log.warning("job_requeued", job=job.id, kind=job.kind, deaths=deaths, attempts=job.attempts)

    def settle_waiting(self) -> None:
        """Dependencies that ended while nobody told their dependents."""
        for waiter in Job.objects.filter(state=WAITING, owner="", after__state__in=TERMINAL).distinct():
            if not self._put_off(waiter.id):
                with self._alone(waiter.id):
                    service.settle(waiter)

    def fail_late(self) -> None:
        """Jobs past their deadline that are not running; the running ones are cancelled."""
        # Named states, not "all but the ended": only so does the index keep a hundred thousand ended jobs out.
        for job in Job.objects.filter(state__in=[QUEUED, WAITING, RUNNING, PAUSED], deadline_at__lt=timezone.now()):
            if self._put_off(job.id):
                continue
            with self._alone(job.id):
                if job.owner:
                    service.cancel(job.id, by="deadline")
                else:
                    error = "it did not end before its deadline"
                    moves.move(job.id, FAILED, expect={job.state}, by="scheduler", error=error, error_code="deadline_exceeded")

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
