"""The cpu process: orchestration of batches and datasets, imports, downloads, webhooks, exports.

Its threads mostly wait for rows or downloads, so there are more of them than cores. Ends on SIGTERM by giving its
jobs back to their queue; a kill -9 does the same a moment later through the scheduler.
"""

from __future__ import annotations

import os
import time

import structlog

from workers.guard import end_with_parent
from workers.stopping import Stop

log = structlog.get_logger(__name__)

#: Seconds given to running jobs to reach a safe point at shutdown; below the supervisor's patience.
DRAIN_SECONDS = 8.0


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mlxplatform.settings")
    import django

    django.setup()

    import dramatiq
    from django.conf import settings

    from mlxplatform.broker import queues
    from mlxplatform.broker.dramatiq_broker import get_broker
    from mlxplatform.jobs.pulse import Pulse
    from workers.tasks import jobs

    stop = Stop()
    end_with_parent(stop.set, grace=DRAIN_SECONDS + 1)

    threads = settings.ENV.cpu_jobs
    pulse = Pulse(queues.CPU_QUEUE, threads=threads)
    pulse.register()
    pulse.start()
    jobs.declare(pulse)
    worker = dramatiq.Worker(get_broker(), worker_threads=threads, worker_timeout=1000)
    worker.start()
    log.info("cpu_ready", worker=pulse.worker_id, threads=threads)

    stop.wait()
    log.info("cpu_stopping", worker=pulse.worker_id)
    pulse.drain()
    started = time.monotonic()
    worker.stop(timeout=int(DRAIN_SECONDS * 1000))
    pulse.end()
    log.info("cpu_stopped", worker=pulse.worker_id, seconds=round(time.monotonic() - started, 1))
    # A runner stuck in a native call must not keep the process: its job is found ownerless and queued again.
    os._exit(0)


if __name__ == "__main__":
    main()
