"""A job that made a model is done when whoever sees that it is done can ask for the model.

Hosts look into the library once a second and web processes remember for a moment what the hosts said. A name nobody
has heard of yet would meanwhile be answered by another model.
"""

from __future__ import annotations

import time

from mlxplatform.broker.connections import BROKER_ERRORS
from mlxplatform.inference.placement import STATE_AGE, models_of_hosts
from mlxplatform.jobs.context import JobContext

#: Seconds within which a living host says what is new: its heartbeat, and some for a busy machine.
PATIENCE = 5.0
#: Seconds between two looks at what they say.
LOOK = 0.1


def wait_until_known(ctx: JobContext, model_id: str) -> None:
    """Return when a host offers the model and every web process has heard of it; at once when no host lives.

    Raises nothing: what is published stays so, even when the job should stop now.
    """
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and not ctx.cancelled:
        try:
            hosts = models_of_hosts().values()
        except BROKER_ERRORS:
            return
        if not hosts:
            return
        if any(model_id in models for models in hosts):
            time.sleep(STATE_AGE)
            return
        time.sleep(LOOK)
