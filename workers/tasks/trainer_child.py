"""Running a trainer child for a job: memory, the lease, the pipes, wishes down and events up.

The job's thread sets memory aside, acquires the GPU lease, starts the child, copies its events into the job's
log and passes wishes on: cancel, pause, finish, and yield. A child yields softly, keeping its memory, when the
lease says that somebody should be let in, or when the machine should rest; and leaves for good, to be started
again from its checkpoint, when a chat needs its memory. A child that does not end when asked is killed with
everything it started. Imports no mlx.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
from django.conf import settings

from mlxplatform.broker.connections import BROKER_ERRORS, sync_client
from mlxplatform.broker.lease import Lease, LeaseTooLarge
from mlxplatform.jobs.context import JobCancelled, JobContext, JobFailed, JobStopped, OwnershipLost
from workers import power
from workers.tasks.gpu_room import room, wait_for_quiet

log = structlog.get_logger(__name__)

ROOT = Path(__file__).resolve().parents[2]
#: Seconds a child may take to end after a wish: one step of a large model, or writing a checkpoint.
GRACE = {"cancel": 15.0, "pause": 60.0, "finish": 600.0}
#: Seconds between looks at the job, the lease and the child while nothing happens.
LOOK = 0.1
#: Seconds between questions whether a person asked for an early finish (one read of SQL each).
ASK_FINISH = 1.0
#: Seconds between tries while the broker, and with it the lease, is away.
BROKER_PAUSE = 1.0
#: Seconds between looks at battery and heat.
LOOK_AT_POWER = 10.0
#: Tasks that write checkpoints, so that they can leave and go on later.
LEAVES = {"finetune"}
#: Lines of the child's stderr kept for the server's log when it dies.
STDERR_LINES = 40

_END = object()


class Child:
    """The process and its pipes. Leaving the context ends it, whatever it does."""

    def __init__(self, task: dict[str, Any]):
        command = [sys.executable, "-m", "workers.trainer.main"]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name != "MLXP_LIFELINE"},
        )
        # A Mac that falls asleep stops the GPU; this helper of the system ends with the child by itself.
        awake = ["/usr/bin/caffeinate", "-i", "-w", str(self.process.pid)]
        self._awake = subprocess.Popen(awake, start_new_session=True) if sys.platform == "darwin" else None
        self.events: queue.Queue[Any] = queue.Queue()
        self.errors: deque[str] = deque(maxlen=STDERR_LINES)
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._read_events, self._read_errors)]
        for thread in self._threads:
            thread.start()
        self.say(task)

    def say(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it is gone; its end is on its way through the other pipe

    def kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.process.wait()
        if self._awake is not None:
            self._awake.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass  # what was still buffered for it has no reader

    def _read_events(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                self.events.put(json.loads(line))
            except ValueError:
                continue  # cut off by a death in the middle of a line
        self.events.put(_END)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line.decode(errors="replace").rstrip())


class Run:
    """One job's child from lease to end."""

    def __init__(
        self,
        ctx: JobContext,
        task: dict[str, Any],
        size: int,
        reason: str,
        finish_asked: Callable[[], bool] = lambda: False,
        on_event: Callable[[dict[str, Any]], None] = lambda event: None,
    ):
        self.ctx, self.task, self.size = ctx, task, size
        self.finish_asked, self.on_event = finish_asked, on_event
        self._lost = threading.Event()
        self._wish = ""
        self._kill_at = float("inf")
        self._stopped_by: JobStopped | None = None
        #: The child waits between two steps, and the lease is somebody else's.
        self._lent = False
        self._asked_to_yield = self._leaving = False
        self._power = (0.0, "")
        self.lease = Lease(
            sync_client(),
            settings.ENV.host_id,
            mode="exclusive",
            cls="trainer",
            reason=reason,
            size=size,
            job=ctx.job_id,
            on_lost=self._lost.set,
        )

    def result(self) -> dict[str, Any]:
        """What the child answered.

        Raises:
            JobFailed: it explained a failure, or died.
            JobStopped: the job was cancelled, paused or given back.
        """
        while True:
            answer = self._attempt()
            if answer is not None:
                return answer
            self.ctx.stage("yielded", message="A chat needs the memory; the work goes on from its checkpoint when it is quiet.")
            wait_for_quiet(self.ctx)

    def _attempt(self) -> dict[str, Any] | None:
        """One life of a child; None when it left its memory to a chat."""
        self._wish, self._kill_at, self._lent, self._asked_to_yield, self._leaving = "", float("inf"), False, False, False
        self._rest()
        with room(self.ctx, self.size, yields=self.task["task"] in LEAVES) as wanted:
            self._acquire()
            try:
                with Child(self.task) as child:
                    return self._follow(child, wanted)
            finally:
                self.lease.release()

    def _rest(self) -> None:
        """Wait while battery or heat forbid to start."""
        told = False
        while reason := self._forbidden():
            self.ctx.check()
            if not told:
                told = True
                self.ctx.stage("waiting", message=reason)
            self.ctx.wait(LOOK)

    def _forbidden(self) -> str:
        """Why the machine should rest; empty when it need not, or nobody asked to heed it."""
        battery, heat = settings.ENV.pause_on_battery, settings.ENV.pause_on_heat
        if not battery and not heat:
            return ""
        at, reason = self._power
        if time.monotonic() - at > LOOK_AT_POWER:
            reason = power.reason(power.look(), battery=battery, heat=heat)
            self._power = (time.monotonic(), reason)
        return reason

    def _acquire(self) -> None:
        said = False
        while not self._granted(LOOK if not said else 1.0):
            self.ctx.check()
            if not said:
                said = True
                self.ctx.stage("waiting", message="Waiting for the GPU.")
        if said:
            self.ctx.stage("started", message="The GPU is free.")

    def _granted(self, patience: float) -> bool:
        """Whether the lease is ours now; a stopped job leaves the queue, where its place would hold up the others."""
        if self.ctx.cancelled:
            self.lease.release()
            return False
        try:
            if self.lease.acquire(timeout=patience, cancelled=lambda: self.ctx.cancelled):
                self._lost.clear()
                return True
        except LeaseTooLarge as large:
            raise JobFailed("memory_admission", f"This needs {large.excess >> 20} MiB more than the memory budget.") from None
        except BROKER_ERRORS:
            self.ctx.wait(BROKER_PAUSE)
        return False

    def _follow(self, child: Child, wanted: threading.Event) -> dict[str, Any] | None:
        asked_at = 0.0
        while True:
            try:
                event = child.events.get(timeout=LOOK)
            except queue.Empty:
                event = None
            if event is _END:
                self._ended(child)
            elif event is not None:
                kind = event.get("event")
                if kind == "done":
                    child.process.wait()
                    return {name: value for name, value in event.items() if name != "event"}
                if kind == "failed":
                    raise JobFailed(event["code"], event["message"], param=event.get("param"))
                if kind == "stopped":
                    if self._leaving and self._stopped_by is None:
                        return None
                    raise self._stopped_by or JobFailed("stopped", "The training process stopped by itself.", retry=True)
                if kind == "yielded":
                    self.lease.release()
                    self._lent = True
                    if self._wish == "finish":  # how long others need is not up to it
                        self._kill_at = float("inf")
                    self.ctx.stage(
                        "yielded", message=self._forbidden() or "Others use the GPU first; the work goes on after them."
                    )
                else:
                    self._forward(event)
            if self._lost.is_set() and not self._lent:
                child.kill()
                raise JobFailed("lease_lost", "The GPU lease ran out; the work goes on from its last checkpoint.", retry=True)
            if wanted.is_set() and not self._wish:
                self._leaving = True
                self._ask(child, "pause")
            self._share(child)
            if not self._wish and not self._lent and time.monotonic() - asked_at > ASK_FINISH:
                asked_at = time.monotonic()
                if self.finish_asked():
                    self._ask(child, "finish")
            self._pass_wishes_on(child)

    def _share(self, child: Child) -> None:
        """Ask the child to make way, or to go on when the lease is ours again and the machine may work."""
        finishing = self._wish == "finish"  # said when the child was about to make way: it publishes after that
        if self._lent:
            if (finishing or not self._wish) and not self._forbidden() and self._granted(LOOK):
                self._lent = self._asked_to_yield = False
                if finishing:
                    self._kill_at = time.monotonic() + GRACE["finish"]
                child.say({"op": "continue"})
        elif not self._asked_to_yield and not finishing and (self.lease.wanted or self._forbidden()):
            self._asked_to_yield = True
            child.say({"op": "yield"})

    def _pass_wishes_on(self, child: Child) -> None:
        try:
            self.ctx.check()
        except OwnershipLost:
            raise
        except JobStopped as stop:
            self._stopped_by = stop
            wish = "cancel" if isinstance(stop, JobCancelled) else "pause"
            if self._wish not in {wish, "cancel"} or self._leaving:
                self._leaving = False
                self._ask(child, wish)
        if time.monotonic() > self._kill_at:
            log.warning("trainer_killed", job=self.ctx.job_id, wish=self._wish)
            raise self._stopped_by or JobFailed("stuck", "The training process did not end when asked to.")

    def _ask(self, child: Child, wish: str) -> None:
        child.say({"op": wish})
        self._wish = wish
        self._kill_at = time.monotonic() + GRACE[wish]

    def _ended(self, child: Child) -> None:
        status = child.process.wait()
        if self._stopped_by is not None:
            raise self._stopped_by
        log.error("trainer_died", job=self.ctx.job_id, status=status, stderr="\n".join(child.errors))
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        raise JobFailed("trainer_died", f"The training process {how}; the server's log has the details.", retry=True)

    def _forward(self, event: dict[str, Any]) -> None:
        self.on_event(event)
        kind = event.pop("event", "")
        if kind == "stage":
            self.ctx.stage(event.pop("name"), event.pop("progress", None), event.pop("message", ""), **event)
        elif kind == "metric":
            self.ctx.metric(event.pop("kind"), event.pop("step"), **event)
        elif kind == "log":
            self.ctx.log(event["line"])
        elif kind == "artefact":
            self.ctx.artefact(event.pop("name"), **event)
