"""What a runner may say and ask while it runs a job.

Everything here touches memory only, so that it may be called from any thread, from async code, and as often as
wanted. The process's :class:`~mlxplatform.jobs.pulse.Pulse` writes what piled up and brings in what people ask.
"""

from __future__ import annotations

import threading
from typing import Any

from django.utils import timezone

from mlxplatform.jobs.models import Job
from mlxplatform.jobs.moves import Holder, NewEvent
from mlxplatform.jobs.plain import plain

#: Longest text of one log line kept, in characters; the rest says how much was cut.
LOG_LINE_LIMIT = 8_000
#: Events held for the next write. A runner that logs faster waits for the write instead of growing.
BUFFER_LIMIT = 5_000


class JobFailed(Exception):
    """The job cannot succeed, for a reason fit to be shown.

    ``retry`` says whether another attempt could help, ``param`` which field of the order is to blame, where one is.
    """

    def __init__(self, code: str, message: str, *, retry: bool = False, param: str | None = None):
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry = retry
        self.param = param


class JobStopped(Exception):
    """Raised by :meth:`JobContext.check`: the runner must tidy up and let it through."""


class JobCancelled(JobStopped):
    """A person cancelled the job."""


class JobPaused(JobStopped):
    """A person paused the job; it is queued again when resumed."""


class JobReleased(JobStopped):
    """The worker shuts down; the job goes back to its queue."""


class OwnershipLost(JobStopped):
    """Another worker holds the job now (this one was silent too long). Nothing this one writes is accepted."""


class JobContext:
    """One attempt at one job."""

    def __init__(self, job: Job):
        self.job_id: str = job.id
        self.kind: str = job.kind
        self.config: dict[str, Any] = job.config
        self.project: str = job.project
        self.created_by: str = job.created_by
        self.attempt: int = job.attempts
        self.fence: int = job.fence
        self.queue: str = job.queue
        self.holder = Holder(job.owner, job.fence)
        self._reached = self._from = job.claimed_progress
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._events: list[NewEvent] = []
        self._row: dict[str, Any] = {}
        self._stop: type[JobStopped] | None = None
        self._stopped = threading.Event()

    def log(self, line: str) -> None:
        """One line of text for people; several lines become several events."""
        for text in str(line).splitlines() or [""]:
            if len(text) > LOG_LINE_LIMIT:
                text = f"{text[:LOG_LINE_LIMIT]} … ({len(text) - LOG_LINE_LIMIT} more characters)"
            self._add("log", {"line": text})

    def stage(self, name: str, progress: float | None = None, message: str = "", **extra: Any) -> None:
        """Where the work stands. ``progress`` (0 to 1) and ``message`` are mirrored to the job's row."""
        payload: dict[str, Any] = {"stage": name, **extra}
        row: dict[str, Any] = {}
        if progress is not None:
            row["progress"] = payload["progress"] = min(max(float(progress), 0.0), 1.0)
            self._reached = max(self._reached, row["progress"])
        if message:
            row["message"] = payload["message"] = message
        self._add("stage", payload, row)

    def metric(self, kind: str, step: int, **values: Any) -> None:
        """Numbers of one step, e.g. ``metric("train", 10, loss=2.1)``."""
        self._add("metric", {"kind": kind, "step": step, **values})

    def artefact(self, name: str, **info: Any) -> None:
        """Something was published: its name and what a reader needs to fetch it (never a path of this machine)."""
        self._add("artefact", {"name": name, **info})

    def check(self) -> None:
        """Raise if the job should stop. Costs nothing; call it between steps.

        Raises:
            JobStopped: one of its subclasses.
        """
        if self._stop is not None:
            raise self._stop(self.job_id)

    @property
    def cancelled(self) -> bool:
        """Whether :meth:`check` would raise."""
        return self._stop is not None

    def wait(self, seconds: float) -> None:
        """Sleep, but wake and raise as soon as the job should stop."""
        self._stopped.wait(seconds)
        self.check()

    # Below: for the pulse and the runner loop, not for runners.

    @property
    def progressed(self) -> bool:
        """Whether this attempt got further than the job was when it began."""
        return self._reached > self._from

    def stop(self, reason: type[JobStopped]) -> None:
        """Make :meth:`check` raise ``reason``. The first reason stays, except that lost ownership beats all."""
        with self._lock:
            if self._stop is None or reason is OwnershipLost:
                self._stop = reason
            self._stopped.set()
            self._room.notify_all()

    def resume(self) -> None:
        """Forget a pause that was taken back before the runner saw it."""
        with self._lock:
            if self._stop is JobPaused:
                self._stop = None
                self._stopped.clear()

    def take(self) -> tuple[list[NewEvent], dict[str, Any]]:
        """Everything buffered since the last call: events, and columns of the row."""
        with self._lock:
            events, self._events = self._events, []
            row, self._row = self._row, {}
            self._room.notify_all()
        return events, row

    def give_back(self, events: list[NewEvent], row: dict[str, Any]) -> None:
        """Return what a failed write did not store, in front of what came since."""
        with self._lock:
            self._events[:0] = events
            self._row = {**row, **self._row}

    def _add(self, type_: str, payload: dict[str, Any], row: dict[str, Any] | None = None) -> None:
        payload, row = plain(payload), plain(row or {})
        with self._lock:
            while len(self._events) >= BUFFER_LIMIT and self._stop is None:
                if not self._room.wait(timeout=1.0):
                    break
            self._events.append(NewEvent(type_, payload, timezone.now()))
            self._row.update(row)
