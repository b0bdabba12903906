"""The heartbeat of a worker process, in a thread of its own that no job can block.

Twice a second it writes what the running jobs buffered, asks SQL what people want of them, and counts the
worker's beat. It is the only writer of running jobs' events, apart from the last ones, which go with the move
that ends the attempt.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time

import structlog
from django.db import DatabaseError, connection
from django.db.models import F
from django.utils import timezone

from mlxplatform.jobs import moves
from mlxplatform.jobs.context import JobCancelled, JobContext, JobPaused, JobReleased, OwnershipLost
from mlxplatform.jobs.models import Job, Worker
from mlxplatform.jobs.states import CANCELLED, CANCELLING, LIVE, ZOMBIE

log = structlog.get_logger(__name__)

#: Seconds between writes of buffered events and looks at wishes: the largest part of cancel latency.
INTERVAL = 0.5
#: Ticks between heartbeats, i.e. one every 2 s: a tenth of the time after which a silent owner is dead.
TICKS_PER_BEAT = 4
#: Beats during which a job may be ours in SQL but not in memory: it is just being claimed, or being ended.
STRAY_BEATS = 45


def machine() -> str:
    """A name of this machine, to tell whether a process id means anything here."""
    return socket.gethostname()


class Pulse(threading.Thread):
    """One per worker process; ``worker_id`` is the owner written into claimed jobs."""

    def __init__(self, queue: str, *, threads: int = 1):
        super().__init__(name="pulse", daemon=True)
        self.queue = queue
        self.threads = threads
        self.worker_id = f"{queue}:{os.getpid()}:{secrets.token_hex(4)}"
        #: By job and fence: a process that slept may be given the same job again beside its lost attempt.
        self._running: dict[tuple[str, int], JobContext] = {}
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._draining = False
        self._strays: dict[tuple[str, int], int] = {}

    def register(self) -> None:
        """Make this worker visible. Called before the first claim."""
        Worker.objects.create(id=self.worker_id, queue=self.queue, machine=machine(), pid=os.getpid(), threads=self.threads)

    def add(self, context: JobContext) -> None:
        with self._lock:
            self._running[context.job_id, context.fence] = context
            draining = self._draining
        if draining:
            context.stop(JobReleased)

    def remove(self, context: JobContext) -> None:
        with self._lock:
            self._running.pop((context.job_id, context.fence), None)

    def drain(self) -> None:
        """Ask every running job to go back to its queue: the worker shuts down."""
        with self._lock:
            self._draining = True
            running = list(self._running.values())
        for context in running:
            context.stop(JobReleased)

    @property
    def draining(self) -> bool:
        return self._draining

    def run(self) -> None:
        tick = 0
        while not self._end.wait(INTERVAL):
            tick += 1
            started = time.monotonic()
            try:
                self.tick(beat=tick % TICKS_PER_BEAT == 0)
            except DatabaseError as error:
                log.warning("pulse_missed", worker=self.worker_id, error=type(error).__name__)
                connection.close()
            except Exception:
                # A defect met in one tick: a worker without a beat would be declared dead while it goes on claiming.
                log.exception("pulse_failed", worker=self.worker_id)
                connection.close()
            took = time.monotonic() - started
            if took > INTERVAL * TICKS_PER_BEAT:
                log.warning("pulse_slow", worker=self.worker_id, seconds=round(took, 2))
        connection.close()

    def tick(self, *, beat: bool) -> None:
        """One round: every now and then the beat, then events out and wishes in."""
        with self._lock:
            running = list(self._running.values())
        if beat:
            self._beat({(context.job_id, context.fence) for context in running})
        for context in running:
            self._flush(context)
        if running:
            self._hear(running)

    def _beat(self, running: set[tuple[str, int]]) -> None:
        now = timezone.now()
        known = Worker.objects.filter(pk=self.worker_id).update(beats=F("beats") + 1, heartbeat_at=now)
        if not known and not self._end.is_set():
            self.register()  # swept as dead while asleep; its jobs are lost, but it may take new ones
        owned = Job.objects.filter(owner=self.worker_id, state__in=LIVE)
        if running:
            owned.filter(pk__in={job_id for job_id, _ in running}).update(heartbeat_at=now)
        self._drop_strays(set(owned.values_list("id", "fence")), running)

    def _drop_strays(self, owned: set[tuple[str, int]], running: set[tuple[str, int]]) -> None:
        """Give up jobs that are ours in SQL but that no thread of ours runs: their end could not be written."""
        self._strays = {stray: self._strays.get(stray, 0) + 1 for stray in owned - running}
        for (job_id, fence), beats in self._strays.items():
            if beats >= STRAY_BEATS:
                log.error("job_stray", job=job_id, fence=fence)
                self._drop(job_id, moves.Holder(self.worker_id, fence))

    def _drop(self, job_id: str, holder: moves.Holder) -> None:
        try:
            moves.move(job_id, ZOMBIE, holder=holder, by="worker", fence=holder.fence + 1, owner="")
        except moves.MoveRefused:
            try:
                moves.move(job_id, CANCELLED, holder=holder, expect={CANCELLING}, by="worker")
            except moves.MoveRefused as refused:
                log.info("job_stray_gone", job=job_id, reason=refused.reason)  # ended, or taken from us, just now

    def _flush(self, context: JobContext) -> None:
        events, row = context.take()
        if not events and not row:
            return
        try:
            moves.append(context.job_id, context.holder, events, **row)
        except moves.MoveRefused:
            context.stop(OwnershipLost)
        except DatabaseError as error:
            # One job's trouble must not keep the others from being heard, nor the worker from beating.
            log.warning("job_events_delayed", job=context.job_id, events=len(events), error=type(error).__name__)
            context.give_back(events, row)
            connection.close()

    def _hear(self, running: list[JobContext]) -> None:
        rows = {
            row["id"]: row
            for row in Job.objects.filter(pk__in=[c.job_id for c in running]).values("id", "state", "owner", "fence", "wish")
        }
        for context in running:
            row = rows.get(context.job_id)
            if row is None or (row["owner"], row["fence"]) != (context.holder.owner, context.holder.fence):
                with self._lock:
                    finished = (context.job_id, context.fence) not in self._running
                if not finished:
                    context.stop(OwnershipLost)
            elif row["state"] == CANCELLING:
                context.stop(JobCancelled)
            elif row["wish"] == "pause":
                context.stop(JobPaused)
            else:
                context.resume()

    def end(self) -> None:
        """Stop beating and take the worker off the list. Jobs must have ended or been released before."""
        self._end.set()
        self.join(timeout=5)
        try:
            Worker.objects.filter(pk=self.worker_id).delete()
        except DatabaseError as error:
            log.warning("worker_row_left", worker=self.worker_id, error=type(error).__name__)
