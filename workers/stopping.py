"""Being asked to stop, by a signal or by a thread, in a way that cannot be missed and cannot deadlock.

``threading.Event`` can do both: its lock is not reentrant, so setting it in a signal handler may wait for the very
thread that the handler interrupted; and a signal that the kernel hands to another thread does not wake a main thread
that waits without a timeout (seen after SIGSTOP and SIGCONT). Here the interpreter itself writes a byte to a pipe
from whichever thread got the signal, and waiting is waiting for that byte.
"""

from __future__ import annotations

import os
import select
import signal


class Stop:
    """Made once, in the main thread, before other threads start."""

    def __init__(self, *signals: signal.Signals) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for one in signals or (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, _noted)

    def set(self) -> None:
        """Ask from any thread. Repeating it is harmless."""
        try:
            os.write(self._write, b"\0")
        except BlockingIOError:
            return  # a full pipe says it too

    def is_set(self) -> bool:
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it was asked, after at most ``timeout`` seconds. The byte stays, so every thread sees it."""
        return bool(select.select([self._read], [], [], timeout)[0])


def _noted(number: int, frame: object) -> None:
    """The byte is written by then; this only keeps the signal from ending the process."""
