"""Telling others that something happened to jobs. Hints only: whoever misses one finds the truth in SQL.

Two hints exist: a broker message that makes a worker look for claimable jobs, and an id on a pub/sub channel
that makes streams look for new events. Redis may be down or wiped at any time; then nothing is raised here,
the sweeper re-sends the first kind and streams poll for the second.
"""

from __future__ import annotations

import structlog
from django.utils import timezone

from mlxplatform.broker import queues
from mlxplatform.broker.connections import BROKER_ERRORS, sync_client
from mlxplatform.broker.dramatiq_broker import enqueue
from mlxplatform.jobs.models import Job

log = structlog.get_logger(__name__)


def worker(job: Job) -> bool:
    """Send the message that makes a worker of the job's queue look; False when the broker cannot be reached."""
    try:
        enqueue(job.queue, queues.RUN_JOB, job.id)
    except BROKER_ERRORS as error:
        log.warning("job_enqueue_deferred", job=job.id, queue=job.queue, error=type(error).__name__)
        return False
    Job.objects.filter(pk=job.id).update(enqueued_at=timezone.now())
    return True


def announce(job_id: str) -> None:
    """Tell streams that the job has new events."""
    try:
        sync_client().publish(queues.JOBS_CHANNEL, job_id)
    except BROKER_ERRORS as error:
        log.debug("job_announce_lost", job=job_id, error=type(error).__name__)
