"""One engine child as a process: start it by exec, talk to it, notice its end or its silence, stop it for certain.

Started by exec and never forked: a fork after an evaluation hangs the child. It ends with this process in
any case, since its socket closes then. Knows the protocol's framing and nothing of requests.

Orders are written by a thread of their own: a child that does not read would otherwise hold whoever sends, and the
lock that sender holds, for as long as it likes.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import structlog

from workers.engine import protocol
from workers.host.watch import LOOK_SECONDS, Patience, Watch

log = structlog.get_logger(__name__)

#: Seconds an engine may take to end in order before it is killed.
QUIT_GRACE = 5.0
#: Root of the installed code, so that the child imports the same.
_ROOT = Path(__file__).resolve().parent.parent.parent


class EngineChild:
    """A running engine process. ``on_report`` and ``on_exit`` are called from this child's reader thread."""

    def __init__(
        self,
        model_dir: Path,
        options: Mapping[str, object],
        on_report: Callable[[EngineChild, Any], None],
        on_exit: Callable[[EngineChild, int | None], None],
        patience: Patience = Patience(),  # noqa: B008  frozen
    ):
        ours, theirs = socket.socketpair()
        arguments = [f"--{name}={value}" for name, value in options.items()]
        command = [sys.executable, "-m", "workers.engine.main", f"--fd={theirs.fileno()}", f"--model-dir={model_dir}", *arguments]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
        try:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env=environment, cwd=_ROOT, stdin=subprocess.DEVNULL
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._socket = ours
        self._orders: queue.SimpleQueue[protocol.Order | None] = queue.SimpleQueue()
        self._on_report, self._on_exit = on_report, on_exit
        self._watch = Watch(patience)
        self._heard = self._ready = False
        self._in_turn = 0.0
        self._began = time.monotonic()
        self._ended = threading.Event()
        duties = {"engine": self._read, "orders": self._write, "watch": self._look}
        self._threads = [threading.Thread(target=duty, name=f"{name}-{self.pid}", daemon=True) for name, duty in duties.items()]

    def listen(self) -> None:
        """Begin to call back; separate from construction so that the owner can note the child first."""
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, order: protocol.Order) -> None:
        """Hand an order over; never blocks. A dead child swallows it; its end is reported through ``on_exit``."""
        self._orders.put(order)

    def kill(self) -> None:
        """End it now. Its end is reported through ``on_exit`` as any other."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)

    def quit(self, grace: float = QUIT_GRACE) -> None:
        """End it in order, by force after ``grace`` seconds; returns when it is gone."""
        self.send(protocol.Quit())
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def _handle(self, report: Any) -> None:
        self._heard = True
        if isinstance(report, protocol.Alive):
            self._in_turn = report.in_turn
            return
        self._in_turn = 0.0
        self._ready = self._ready or isinstance(report, protocol.Ready)
        try:
            self._on_report(self, report)
        except Exception:  # a defect in handling one report must not end the reading of all others
            log.exception("engine.report_failed", pid=self.pid, report=type(report).__name__)

    def _read(self) -> None:
        reader = protocol.Reader(self._socket, upwards=True)
        try:
            while (report := reader.read()) is not None:
                self._handle(report)
        except (ValueError, msgspec.DecodeError) as error:
            log.error("engine.bad_message", pid=self.pid, reason=str(error))
        self.kill()  # a child that closed its socket has nothing left to say
        status = self._process.wait()
        self._ended.set()
        self._orders.put(None)
        self._socket.close()
        self._on_exit(self, status)

    def _write(self) -> None:
        while (order := self._orders.get()) is not None:
            waiting = [order]
            while not self._orders.empty() and (more := self._orders.get()) is not None:
                waiting.append(more)
            try:
                self._socket.sendall(b"".join(map(protocol.pack, waiting)))
            except OSError:
                return

    def _look(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            heard, self._heard = self._heard, False
            age = time.monotonic() - self._began
            reason = self._watch.look(heard=heard, ready=self._ready, in_turn=self._in_turn, age=age)
            if reason is not None:
                log.error("engine.hung", pid=self.pid, reason=reason, in_turn=self._in_turn)
                self.kill()
                return
