"""The actor behind every background job. Light: a kind's code is imported when its first job runs."""

from __future__ import annotations

from collections.abc import Callable

import dramatiq

from mlxplatform.broker import queues
from mlxplatform.broker.dramatiq_broker import get_broker
from mlxplatform.jobs.pulse import Pulse
from mlxplatform.jobs.runner import run_next, wake_next


def declare(pulse: Pulse) -> Callable[[str], None]:
    """Declare ``run_job`` on the pulse's queue. The job named in a message is a hint; SQL says which one is next."""

    # The pulse tells running jobs of a shutdown at their next check; an exception raised into the thread could
    # strike while a job's end is being written.
    @dramatiq.actor(actor_name=queues.RUN_JOB, queue_name=pulse.queue, broker=get_broker(), notify_shutdown=False)
    def run_job(job_id: str) -> None:
        if run_next(pulse) and not pulse.draining:
            wake_next(pulse.queue)

    return run_job
