"""Why a job is not at work now, in a sentence, and what the GPU does meanwhile.

It reads the jobs' rows, the held queues and the leases of the hosts; it decides nothing. A broker that is away takes
the leases' part of the answer with it, not the page.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.utils import timezone

from mlxplatform.broker import lease
from mlxplatform.broker.connections import BROKER_ERRORS, sync_client
from mlxplatform.jobs.models import Job, QueuePause, Worker
from mlxplatform.jobs.states import PAUSED, QUEUED, RUNNING, TERMINAL, WAITING

#: Jobs at the front of a queue that are looked at; whoever is behind them is told "at least".
_COUNTED = 200


def leases(hosts: Iterable[str]) -> list[dict[str, Any]]:
    """Who holds the GPU of each host and who waits for it; hosts of an unreachable broker are left out."""
    found = []
    for host in hosts:
        try:
            found.append({"host": host, **lease.look(sync_client(), host)})
        except BROKER_ERRORS:
            break
    return found


def reasons(jobs: Iterable[Job], seen: list[dict[str, Any]]) -> dict[str, str]:
    """A sentence for every job of ``jobs`` that waits for something, by id. ``seen``: what :func:`leases` found."""
    look = _Look(seen)
    told = {}
    for job in jobs:
        if job.state not in TERMINAL and (sentence := look.reason(job)):
            told[job.id] = sentence
    return told


class _Look:
    """What is read once for all jobs of a page, however many there are."""

    def __init__(self, seen: list[dict[str, Any]]) -> None:
        self._held = {pause.queue: pause.paused_by for pause in QueuePause.objects.all()}
        self._manned = set(Worker.objects.values_list("queue", flat=True))
        self._at_the_gpu = {one["job"]: (one, state) for state in seen for one in state["waiters"] if one.get("job")}
        self._lines: dict[str, list[str]] = {}

    def reason(self, job: Job) -> str:
        if job.id in self._at_the_gpu:
            return _gpu_reason(*self._at_the_gpu[job.id])
        if job.state == PAUSED:
            return "Paused by a person; Resume lets it go on."
        if job.state == WAITING:
            others = list(job.after.exclude(state__in=TERMINAL).values_list("kind", "id")[:2])
            return "Waits for " + ", ".join(f"{kind} {other}" for kind, other in others) + " to be done." if others else ""
        return self._queued(job) if job.state == QUEUED else ""

    def _queued(self, job: Job) -> str:
        queue = job.queue
        if queue in self._held:
            whose = self._held[queue] or "an operator"
            return f"Its queue {queue} is held by {whose}, until an operator lets it go on (on the page of all jobs)."
        if job.due_at > timezone.now():
            return f"{'Tries again' if job.attempts else 'Starts'} at {job.due_at:%H:%M:%S} UTC."
        if job.lane and Job.objects.filter(lane=job.lane, state=RUNNING).exists():
            return "One job at a time works on this; another one does now."
        if queue not in self._manned:
            return f"No worker serves queue {queue} now; one starts by itself, or on the machine that should run it."
        line = self._line(queue)
        if job.id not in line:
            return f"At least {len(line)} jobs are ahead in queue {queue}."
        ahead = line.index(job.id)
        if ahead == 0:
            return f"Next in line in queue {queue}."
        return f"{ahead} job{'s are' if ahead > 1 else ' is'} ahead in queue {queue}."

    def _line(self, queue: str) -> list[str]:
        """The front of a queue, in the order in which its jobs will be taken."""
        if queue not in self._lines:
            waiting = Job.objects.filter(queue=queue, state=QUEUED, due_at__lte=timezone.now())
            self._lines[queue] = list(waiting.order_by("-priority", "created_at").values_list("id", flat=True)[:_COUNTED])
        return self._lines[queue]


def _gpu_reason(waiter: dict[str, Any], state: dict[str, Any]) -> str:
    holders = ", ".join(dict.fromkeys(one.get("reason") or one["class"] for one in state["holders"]))
    words = f"Waits for the GPU of {state['host']}"
    if waiter.get("ahead"):
        words += f", {waiter['ahead']:.0f} ahead"
    if waiter.get("lacking"):
        words += f", lacks {waiter['lacking'] / (1 << 20):.0f} MiB"
    return f"{words}; now at work: {holders}." if holders else f"{words}."
