"""What a person does to jobs and queues, each with its audit entry, in one transaction: from the API, pages, admin and terminal.

Whether they may is for the doors to say; here it is done and written down, or neither.
"""

from __future__ import annotations

from collections.abc import Callable

from django.db import transaction

from mlxplatform.accounts import audit
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import moves, service, wake
from mlxplatform.jobs.models import Job, QueuePause, Worker

#: What a person may do to a job, by the last part of the path.
ACTIONS: dict[str, Callable[[str, str], Job]] = {
    "cancel": service.cancel,
    "retry": service.retry,
    "pause": service.pause,
    "resume": service.resume,
}


def act(job: Job, action: str, by: str) -> Job:
    """
    Raises:
        Refusal: the job's state does not allow it.
    """
    with transaction.atomic():
        changed = ACTIONS[action](job.id, by)
        audit.record(
            by,
            f"job.{action}",
            job.id,
            project=job.project,
            before={"state": job.state, "wish": job.wish},
            after={"state": changed.state, "wish": changed.wish},
        )
    return changed


def hold(queue: str, by: str) -> None:
    """Start nothing more from a queue; what runs goes on.

    Raises:
        Refusal: 404 no job and no worker ever named it.
    """
    with transaction.atomic():
        if not (Worker.objects.filter(queue=queue).exists() or Job.objects.filter(queue=queue).exists()):
            raise Refusal(404, "queue_not_found", "queue not found")
        QueuePause.objects.get_or_create(queue=queue, defaults={"paused_by": by})
        audit.record(by, "queue.pause", queue)


def let_go_on(queue: str, by: str) -> None:
    """Start from a queue again; harmless when it was not held."""
    with transaction.atomic():
        QueuePause.objects.filter(queue=queue).delete()
        audit.record(by, "queue.resume", queue)
        transaction.on_commit(lambda: _wake_first(queue))


def _wake_first(queue: str) -> None:
    """Whoever takes the first job wakes the next; without this the sweeper would, some seconds later."""
    first = moves.claimable(queue).first()
    if first is not None:
        wake.worker(first)
