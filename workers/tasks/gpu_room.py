"""Room in memory for a trainer beside this host's engines: idle models are unloaded, busy ones waited for.

Nothing in use is ever evicted. The job says how much is missing while it waits, and can be cancelled.
"""

from __future__ import annotations

from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs.context import JobContext
from workers.host import runtime as host
from workers.host.residency import Residency, declared_bytes

#: Seconds between looks while every model in memory is in use or pinned.
LOOK = 2.0


def make_room(ctx: JobContext, needed: int) -> None:
    """Return when ``needed`` bytes fit beside the models in memory. Does nothing in a process without engines."""
    if host._runtime is None:
        return
    residency = host._runtime.residency
    told = False
    while True:
        ctx.check()
        used = sum(declared_bytes(engine.model, residency.dtype) for engine in residency.engines())
        missing = used + needed - residency.budget
        if missing <= 0:
            return
        if _unload_one(ctx, residency):
            continue
        if not told:
            told = True
            ctx.stage("waiting", message=f"Waiting for {missing >> 20} MiB of memory that models in use hold.")
        ctx.wait(LOOK)


def _unload_one(ctx: JobContext, residency: Residency) -> bool:
    """Unload the model that was idle longest; False when each is busy or pinned."""
    for engine in sorted(residency.engines(), key=lambda engine: engine.last_used):
        if engine.busy or residency.is_pinned(engine.model.id):
            continue
        try:
            if residency.unload(engine.model.id):
                ctx.log(f"Unloaded {engine.model.id} to make room.")
                return True
        except Refusal:
            continue  # it became busy just now
    return False
