"""Room in memory for a trainer beside this host's engines: idle models are unloaded, busy ones waited for.

Nothing in use is ever evicted. The job says how much is missing while it waits, and can be cancelled. What it
got stays set aside until the block ends, so that no model is loaded into the same memory meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs.context import JobContext
from workers.host import runtime as host
from workers.host.residency import Reservation, Residency

#: Seconds between looks while every model in memory is in use or pinned.
LOOK = 2.0
#: Seconds without any request after which a trainer that left for a chat comes back.
QUIET = 60.0


@contextmanager
def room(ctx: JobContext, needed: int, *, yields: bool) -> Iterator[threading.Event]:
    """Hold ``needed`` bytes beside the models in memory; the event is set when a chat wants them.

    ``yields`` says whether the work can leave and go on later. In a process without engines there is room.
    """
    if host._runtime is None:
        yield threading.Event()
        return
    residency = host._runtime.residency
    reservation = _reserved(ctx, residency, needed, yields)
    try:
        yield reservation.wanted
    finally:
        residency.give_back(reservation)


def wait_for_quiet(ctx: JobContext) -> None:
    """Return when nobody has asked this host's engines anything for a while."""
    if host._runtime is None:
        return
    residency = host._runtime.residency
    left = time.monotonic()
    while True:
        ctx.check()
        engines = residency.engines()
        last = max([left, *(engine.last_used for engine in engines)])
        if not any(engine.busy for engine in engines) and time.monotonic() - last > QUIET:
            return
        ctx.wait(LOOK)


def _reserved(ctx: JobContext, residency: Residency, needed: int, yields: bool) -> Reservation:
    told = False
    while True:
        ctx.check()
        got = residency.reserve(ctx.job_id, needed, yields=yields)
        if isinstance(got, Reservation):
            return got
        if _unload_one(ctx, residency):
            continue
        if not told:
            told = True
            ctx.stage("waiting", message=f"Waiting for {got >> 20} MiB of memory that others use.")
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
