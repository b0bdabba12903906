"""The gpu process of one host: takes requests, rows and trainer jobs from its queues and supervises the children.

Light by design: no mlx here, so that it can be stopped, restarted and trusted to notice a child's death.
Three Dramatiq workers, one per class of work, because a worker's threads and prefetch are shared by its
queues: waiting chats must never hold the threads of rows, nor the other way round.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

import structlog

from workers.guard import end_with_parent
from workers.stopping import Stop
from workers.turns import keep_what_is_loaded, take_short_turns

if TYPE_CHECKING:
    import dramatiq

log = structlog.get_logger(__name__)

#: Threads beyond slots and waiting room: they exist to refuse at once what has no room.
REFUSERS = 16
#: Trainer jobs a host looks at side by side; the lease decides which of them may use the GPU.
TRAINER_JOBS = 2
#: Seconds for running requests to be told at shutdown; below the supervisor's patience.
DRAIN_SECONDS = 3.0


def _worker(queue: str, threads: int) -> dramatiq.Worker:
    import dramatiq

    from mlxplatform.broker.dramatiq_broker import get_broker

    # Dramatiq warns of several workers in one process, which is meant here.
    logging.getLogger("dramatiq.broker.WakeBroker").setLevel(logging.ERROR)
    worker = dramatiq.Worker(get_broker(), queues={queue}, worker_threads=threads, worker_timeout=1000)
    # An un-acknowledged message counts as prefetched: with less, waiting actors leave one request at a time.
    worker.queue_prefetch = threads
    worker.start()
    return worker


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mlxplatform.settings")
    import django

    django.setup()

    from django.conf import settings

    from mlxplatform import tracing
    from mlxplatform.broker import queues
    from mlxplatform.broker.connections import sync_client
    from mlxplatform.broker.dramatiq_broker import get_broker
    from mlxplatform.environment import BadSetting
    from mlxplatform.jobs.pulse import Pulse
    from mlxplatform.rows import sweep as rows
    from workers.host.control import Control
    from workers.host.orders import operations
    from workers.host.publisher import Publisher
    from workers.host.runtime import runtime
    from workers.host.state import HostState
    from workers.host.stored import StoredRequests
    from workers.tasks import generation, jobs
    from workers.tasks import rows as _run_chunk  # noqa: F401  its import declares the actor of the rows queue

    try:
        tracing.start("gpu")
    except BadSetting as error:
        log.error("misconfigured", reason=str(error))
        sys.exit(os.EX_CONFIG)

    take_short_turns()
    keep_what_is_loaded()
    stop = Stop()
    end_with_parent(stop.set, grace=DRAIN_SECONDS + 1)

    get_broker()
    host, env = settings.ENV.host_id, settings.ENV
    client = sync_client()
    engine = runtime()
    publisher = Publisher(client, engine.cancel_channel)
    engine.on_flush.append(publisher.flush)
    publisher.start()
    state = HostState(engine, client)
    state.start()
    stored = StoredRequests(engine, client)
    stored.start()
    control = Control(client, host, operations(engine, publisher, client))
    control.start()

    pulse = Pulse(queues.gpu_jobs(host), threads=TRAINER_JOBS)
    pulse.register()
    pulse.start()
    generation.declare(host, engine, publisher, client)
    jobs.declare(pulse)

    rows.reclaim(host)

    pools = [
        _worker(queues.interactive(host), env.slots + env.queue_limit + REFUSERS),
        _worker(queues.rows(host), env.row_chunks),
        _worker(queues.gpu_jobs(host), TRAINER_JOBS),
    ]
    log.info("gpu.ready", host=host, slots=env.slots, waiting_room=env.queue_limit)
    engine.warm()

    stop.wait()
    log.info("gpu.stopping", host=host)
    state.stop()
    stored.stop()
    pulse.drain()
    engine.close()
    publisher.close()
    control.stop()
    for worker in pools:
        worker.stop(timeout=int(DRAIN_SECONDS * 1000))
    pulse.end()
    os._exit(0)


if __name__ == "__main__":
    main()
