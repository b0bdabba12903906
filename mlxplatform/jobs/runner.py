"""Running one job in a worker thread: claim, call the kind's runner, write the end.

Whatever the runner does (returns, explains a failure, crashes, is stopped), exactly one move ends the attempt,
together with the last buffered events. If the worker loses the job meanwhile, nothing is written.
"""

from __future__ import annotations

import datetime as dt
import errno
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from django.db import DatabaseError, InterfaceError, OperationalError, connection, transaction
from django.utils import timezone

from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import kinds, moves, service, wake
from mlxplatform.jobs.context import JobCancelled, JobContext, JobFailed, JobPaused, JobReleased, OwnershipLost
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.plain import plain, text
from mlxplatform.jobs.pulse import Pulse
from mlxplatform.jobs.states import CANCELLED, CANCELLING, DONE, FAILED, PAUSED, QUEUED

log = structlog.get_logger(__name__)

#: Delays between tries to write a job's end while the database is locked or away, seconds. Their sum exceeds a
#: minute; after that the sweeper treats the job as its owner's death.
END_RETRIES = (0.2, 0.5, 1, 2, 5, 10, 20, 30)
#: What a file system says that has no room: no space, over quota, over the process's limit.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: Seconds a job is put off when the database or the disk is in trouble.
TROUBLE_DELAY = 15.0


def run_next(pulse: Pulse) -> bool:
    """Claim and run the best job of the worker's queue. False when there was none."""
    if pulse.draining:
        return False
    job = moves.claim(pulse.queue, pulse.worker_id)
    if job is None:
        return False
    context = JobContext(job)
    pulse.add(context)
    structlog.contextvars.bind_contextvars(job=job.id)
    try:
        log.info("job_started", kind=job.kind, attempt=job.attempts, fence=job.fence)
        end = _attempt(job, context)
        _write_end(end, context)
    finally:
        pulse.remove(context)
        structlog.contextvars.unbind_contextvars("job")
        connection.close()
    return True


def _attempt(job: Job, context: JobContext) -> Callable[[], Job] | None:
    """Call the runner; returns the move that ends the attempt, or None when the job is no longer ours."""
    try:
        result = kinds.load(kinds.get(job.kind).runner)(context)
    except OwnershipLost:
        return None
    except JobCancelled:
        return _end(context, CANCELLED, message="cancelled")
    except JobPaused:
        return _end(context, PAUSED, message="paused", attempts=max(job.attempts - 1, 0))
    except JobReleased:
        return _end(context, QUEUED, message="the worker is restarting", attempts=max(job.attempts - 1, 0))
    except JobFailed as failure:
        # What got further than before may go on: a run of days is not given up for its third interruption.
        deaths = 1 if context.progressed else job.deaths + 1
        if failure.retry and deaths < job.max_attempts and job.attempts < moves.MAX_CLAIMS:
            return _put_back(job, context, text(failure.message), deaths)
        said = {"param": text(failure.param)} if failure.param else {}
        return _end(context, FAILED, said, error=text(failure.message), error_code=failure.code[:64])
    except Exception as error:
        if trouble := _passing(error):
            # Nothing the job did: however long it lasts, it costs no attempt.
            log.warning("job_put_off", kind=job.kind, trouble=trouble, error=type(error).__name__)
            due = timezone.now() + dt.timedelta(seconds=TROUBLE_DELAY * random.uniform(0.5, 1.0))
            message = f"{trouble}; trying again soon"
            return _end(context, QUEUED, due_at=due, message=message, attempts=max(job.attempts - 1, 0))
        log.exception("job_crashed", kind=job.kind, attempt=job.attempts)
        if job.attempts < job.max_attempts:
            return _retry_later(job, context, "internal error")
        return _end(context, FAILED, error="internal error; the server's log has the details", error_code="internal_error")
    return _end(context, DONE, result=plain(result), message="")


def _passing(error: Exception) -> str:
    """What is wrong around the job, in words for people; "" when it is the job that is wrong."""
    if isinstance(error, OperationalError | InterfaceError):
        return "the database is locked, full or away"
    full = isinstance(error, OSError) and error.errno in FULL
    if full or (isinstance(error, Refusal) and error.code == "disk_full"):
        return "the disk is full"
    return ""


def _retry_later(job: Job, context: JobContext, why: str) -> Callable[[], Job]:
    delay = kinds.get(job.kind).retry_delay(job.attempts)
    message = f"{why}; attempt {job.attempts + 1} of {job.max_attempts} in {delay:.0f} s"
    return _end(context, QUEUED, due_at=timezone.now() + dt.timedelta(seconds=delay), message=message)


def _put_back(job: Job, context: JobContext, why: str, deaths: int) -> Callable[[], Job]:
    delay = kinds.get(job.kind).retry_delay(deaths)
    due = timezone.now() + dt.timedelta(seconds=delay)
    return _end(context, QUEUED, due_at=due, message=f"{why.rstrip('.')}; trying again in {delay:.0f} s", deaths=deaths)


def _end(context: JobContext, to: str, said: Mapping[str, Any] | None = None, /, **fields: Any) -> Callable[[], Job]:
    def write() -> Job:
        events, row = context.take()
        try:
            with transaction.atomic():
                current = Job.objects.filter(pk=context.job_id).values_list("state", flat=True).first()
                if current == CANCELLING and to in {QUEUED, PAUSED}:
                    # Cancelled while it was being put back: the person's wish is the end of it.
                    return moves.move(context.job_id, CANCELLED, holder=context.holder, events=events, **row)
                return moves.move(context.job_id, to, holder=context.holder, events=events, said=said, **{**row, **fields})
        except DatabaseError:
            context.give_back(events, row)
            raise

    return write


def _write_end(end: Callable[[], Job] | None, context: JobContext) -> None:
    if end is None:
        log.warning("job_ownership_lost", fence=context.fence)
        return
    for delay in (*END_RETRIES, None):
        try:
            job = end()
        except moves.MoveRefused as refused:
            log.warning("job_end_refused", reason=refused.reason, fence=context.fence)
            return
        except DatabaseError as error:
            connection.close()
            if delay is None:
                log.error("job_end_lost", error=type(error).__name__)
                return
            log.warning("job_end_delayed", error=type(error).__name__, retry_in=delay)
            time.sleep(delay)
        else:
            log.info("job_ended", state=job.state, code=job.error_code)
            service.settle_dependents(job)
            return


def wake_next(queue: str) -> None:
    """After an end: make somebody look again if a job waits (a concurrency limit may have let go)."""
    waiting = moves.claimable(queue).first()
    if waiting is not None:
        wake.worker(waiting)
