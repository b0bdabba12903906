"""The scheduler process: everything that must happen although nobody asked.

A list of chores, each with its period. A chore that fails is logged and tried again at its next turn; the others
never notice. Two schedulers at once do no harm: every chore acts through compare-and-set.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from workers.guard import end_with_parent
from workers.stopping import Stop

log = structlog.get_logger(__name__)


@dataclass
class Chore:
    """Something to do every ``period`` seconds. ``waits``: it waits for others, so it gets a thread of its own."""

    name: str
    period: float
    act: Callable[[], object]
    waits: bool = False
    due: float = field(default=0.0)


def chores() -> list[Chore]:
    """All periodic work of the platform."""
    from mlxplatform.accounts import throttle
    from mlxplatform.datasets import submit as datasets
    from mlxplatform.files import service as files
    from mlxplatform.inference import history
    from mlxplatform.jobs import retention
    from mlxplatform.jobs.sweep import Sweeper
    from mlxplatform.rows.sweep import Sweeper as RowSweeper
    from mlxplatform.schedules import service as schedules
    from mlxplatform.webhooks import service as webhooks

    return [
        Chore("jobs", 1.0, Sweeper().sweep),
        Chore("rows", 2.0, RowSweeper().sweep),
        Chore("files", 300.0, files.sweep),
        Chore("dataset previews", 3600.0, datasets.sweep_previews),
        Chore("history", 30.0, history.sweep),
        Chore("job logs", 3600.0, retention.sweep),
        Chore("sign-in failures", 3600.0, throttle.sweep),
        Chore("schedules", 1.0, schedules.tick),
        Chore("webhooks", 1.0, webhooks.deliver_due, waits=True),
    ]


def run(work: list[Chore], stop: Stop) -> None:
    """Act on each chore when it is due, until ``stop`` is set."""
    from django.db import connection

    while not stop.is_set():
        for chore in work:
            if chore.due > time.monotonic():
                continue
            try:
                chore.act()
            except Exception:
                # Any chore, any cause: the rest of the platform's upkeep must go on.
                log.exception("chore_failed", chore=chore.name)
                connection.close()
            chore.due = time.monotonic() + chore.period
        stop.wait(max(min(chore.due for chore in work) - time.monotonic(), 0.05))


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mlxplatform.settings")
    import django

    django.setup()
    stop = Stop()
    end_with_parent(stop.set)
    log.info("scheduler_ready")
    work = chores()
    for chore in work:
        if chore.waits:
            threading.Thread(target=run, args=([chore], stop), name=chore.name, daemon=True).start()
    run([chore for chore in work if not chore.waits], stop)


if __name__ == "__main__":
    main()
