"""An engine child: one model, one batch, one socket. Started by exec as ``python -m workers.engine.main``.

Three threads, each with one duty. The main thread owns every mlx call and looks at its inbox before every
step (mlx_lm.server looks each half second while it decodes: 363 against 11 ms to the first token of a late
short request). The inbox thread reads orders from the socket. The outbox thread writes reports, so that a
slow reader never delays a step. When the socket closes, the gpu process is gone and the child ends too.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

from workers.light_structlog import import_light_structlog

import_light_structlog()

import structlog  # noqa: E402

from workers.engine import platform, protocol  # noqa: E402
from workers.engine.arrivals import Arrivals  # noqa: E402
from workers.engine.gathering import Gathering  # noqa: E402
from workers.engine.options import Options, parse  # noqa: E402
from workers.turns import take_short_turns  # noqa: E402

if TYPE_CHECKING:
    from workers.engine.resident import Resident

log = structlog.get_logger("workers.engine")

#: Seconds between two Stats reports while the engine works.
STATS_INTERVAL = 1.0
#: Seconds the idle main thread sleeps at most before it looks at its deadline again.
IDLE_WAIT = 1.0
#: Seconds of silence after which the outbox says that it lives.
ALIVE_SECONDS = 1.0


class Outbox(threading.Thread):
    """Writes reports in order; drops them once the socket is closed. Says how the main thread is when there are none."""

    def __init__(self, sock: socket.socket):
        super().__init__(name="outbox", daemon=True)
        self._sock = sock
        self._queue: queue.SimpleQueue[protocol.Report | None] = queue.SimpleQueue()
        #: When the main thread began its present turn, monotonic seconds.
        self.turned = time.monotonic()

    def put(self, report: protocol.Report) -> None:
        self._queue.put(report)

    def run(self) -> None:
        while (report := self._next()) is not None:
            try:
                self._sock.sendall(protocol.pack(report))
            except OSError:
                return

    def _next(self) -> protocol.Report | None:
        try:
            return self._queue.get(timeout=ALIVE_SECONDS)
        except queue.Empty:
            return protocol.Alive(round(time.monotonic() - self.turned, 3))

    def finish(self) -> None:
        """Write what is left, then end."""
        self._queue.put(None)
        self.join()


class Inbox(threading.Thread):
    """Reads orders. A closed socket is an order to quit."""

    def __init__(self, sock: socket.socket):
        super().__init__(name="inbox", daemon=True)
        self._reader = protocol.Reader(sock, upwards=False)
        self._queue: queue.SimpleQueue[protocol.Order] = queue.SimpleQueue()

    def run(self) -> None:
        while (order := self._reader.read()) is not None:
            self._queue.put(order)
        self._queue.put(protocol.Quit())

    def take(self, *, wait: float) -> list[protocol.Order]:
        """All orders there are; blocks up to ``wait`` seconds for the first."""
        orders: list[protocol.Order] = []
        try:
            orders.append(self._queue.get(timeout=wait) if wait else self._queue.get_nowait())
            while True:
                orders.append(self._queue.get_nowait())
        except queue.Empty:
            return orders


def _loop(resident: Resident, inbox: Inbox, outbox: Outbox) -> None:
    """Serve orders until told to quit. ``side`` answers what is not generation (vectors, scores, adapters)."""
    core, side, gathering, arrivals = resident.core, resident.side, Gathering(), Arrivals()
    deadline, reported, quitting = 0.0, 0.0, False
    while not quitting:
        outbox.turned = time.monotonic()
        late = bool(deadline) and time.monotonic() > deadline
        idle = core.idle and side.idle
        cancelled: list[int] = []
        resting = idle and not late and core.rest()
        wait = IDLE_WAIT if (idle and not resting) or late else arrivals.patience(time.monotonic())
        for order in inbox.take(wait=wait):
            match order:
                case protocol.Start():
                    if order.priority == "interactive":
                        arrivals.came(time.monotonic())
                    gathering.begin(order)
                    core.start(order)
                case protocol.Cancel():
                    cancelled.append(order.seq)
                case protocol.Deadline():
                    deadline = order.monotonic
                case protocol.Flush():
                    core.flush()
                case protocol.Room():
                    outbox.put(protocol.Facts(resident.set_budget(order.budget)))
                case protocol.Shrink():
                    core.shrink()
                case protocol.Unmount():
                    side.order(order)
                    core.forget_adapter(order.name)
                case protocol.Quit():
                    quitting = True
                case _:
                    side.order(order)
        if cancelled:  # together, since a batch's rows leave by the dozen
            core.cancel(*cancelled)
            for seq in cancelled:
                gathering.forget(seq)
                side.cancel(seq)
        for report in side.answers():
            outbox.put(report)
        now = time.monotonic()
        if quitting or (deadline and now > deadline):
            _tell(outbox, gathering.all(now))
            continue
        if not side.idle:
            for report in side.step():
                outbox.put(report)
        if arrivals.patience(time.monotonic()):
            continue
        if not core.idle:
            began = time.monotonic()
            step = core.step(quick=arrivals.quick)
            ended = time.monotonic()
            arrivals.turned(ended - began)
            _tell(outbox, gathering.add(step, ended))
            if core.idle:
                _tell(outbox, gathering.all(time.monotonic()))
        if now - reported >= STATS_INTERVAL or (core.idle and side.idle and not idle):
            reported = now
            outbox.put(protocol.Stats({**core.stats(), **side.stats(), "rss_bytes": platform.resident_bytes()}))


def _tell(outbox: Outbox, news: protocol.Step | None) -> None:
    if news is not None:
        outbox.put(news)


def run(options: Options) -> int:
    """The child's life. Returns the exit status: 0 in order, 3 when the model cannot be loaded."""
    began = time.perf_counter()
    sock = socket.socket(fileno=options.fd)
    outbox = Outbox(sock)
    outbox.start()
    machine = platform.prepare(options.blas, options.threads)

    from workers.engine import loading
    from workers.engine.resident import Resident

    try:
        resident = Resident.load(options, machine)
    except loading.CannotLoad as error:
        log.error("engine.load_failed", reason=str(error), cause=repr(error.__cause__))
        outbox.put(protocol.LoadFailed(str(error), repr(error.__cause__)))
        outbox.finish()
        return 3
    except loading.CannotServe as error:
        log.error("engine.unsupported", reason=str(error))
        outbox.put(protocol.LoadFailed(str(error), "", "unsupported_execution", 501))
        outbox.finish()
        return 3
    inbox = Inbox(sock)
    inbox.start()
    outbox.put(protocol.Ready({**resident.facts, "pid": os.getpid(), "seconds": round(time.perf_counter() - began, 3)}))
    try:
        _loop(resident, inbox, outbox)
        while resident.core.rest():  # what is only in memory would be lost with it
            pass
    finally:
        outbox.finish()
        resident.close()
        del resident
        platform.give_memory_back()
        import mlx.core as mx

        mx.clear_streams()
    return 0


def _log_to_stderr() -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def main() -> None:
    _log_to_stderr()
    take_short_turns()
    # Ctrl-C reaches the whole foreground group; the gpu process decides when its children end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    status = run(parse(sys.argv[1:]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
