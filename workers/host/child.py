"""One engine child as a process: start it by exec, talk to it, notice its end, stop it for certain.

Started by exec and never forked: a fork after an evaluation hangs the child. It ends with this process in
any case, since its socket closes then. Knows the protocol's framing and nothing of requests.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import structlog

from workers.engine import protocol

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
        self._send_lock = threading.Lock()
        self._on_report, self._on_exit = on_report, on_exit
        self._thread = threading.Thread(target=self._read, name=f"engine-{self.pid}", daemon=True)

    def listen(self) -> None:
        """Begin to call back; separate from construction so that the owner can note the child first."""
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, order: protocol.Order) -> None:
        """Hand an order over. A dead child swallows it; its end is reported through ``on_exit``."""
        try:
            with self._send_lock:
                self._socket.sendall(protocol.pack(order))
        except OSError:
            return

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
        self._socket.close()
        self._on_exit(self, status)
