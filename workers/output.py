"""Where the children's lines go: one file per process under the data directory, and the terminal.

The terminal may be slow or paused (Ctrl-S); a child must never wait for it. So lines for the terminal pass a
bounded queue to a thread of their own, and what does not fit is counted and said later. Files are rotated by
size; a full disk costs log lines, never the process.
"""

from __future__ import annotations

import logging
import logging.handlers
import queue
import sys
import threading
from pathlib import Path

#: Lines waiting for the terminal before further ones are dropped.
TERMINAL_BACKLOG = 2000
#: Size at which a log file is rotated, bytes, and how many old ones are kept.
FILE_BYTES, FILES_KEPT = 10 * 2**20, 3
#: Seconds the end of the program waits for a paused terminal.
CLOSE_TIMEOUT = 1.0


class _QuietRotation(logging.handlers.RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """A full disk must not flood the terminal with one traceback per line."""


class Output:
    """The terminal and the log files of all processes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._files: dict[str, logging.Logger] = {}
        self._waiting: queue.Queue[str | None] = queue.Queue(TERMINAL_BACKLOG)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write_terminal, name="terminal", daemon=True)
        self._thread.start()

    def line(self, name: str, text: str, *, terminal: bool = True) -> None:
        """One line of process ``name``."""
        self._file(name).info("%s", text)
        if terminal:
            self.say(f"{name:<9} | {text}")

    def say(self, text: str) -> None:
        """A line for the person at the terminal; written to no file."""
        try:
            self._waiting.put_nowait(text)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        try:
            self._waiting.put(None, timeout=CLOSE_TIMEOUT)
        except queue.Full:
            return
        self._thread.join(CLOSE_TIMEOUT)

    def _file(self, name: str) -> logging.Logger:
        if name not in self._files:
            logger = logging.getLogger(f"output.{name}")
            logger.propagate = False
            logger.setLevel(logging.INFO)
            handler = _QuietRotation(
                self._folder / f"{name}.log", maxBytes=FILE_BYTES, backupCount=FILES_KEPT, encoding="utf-8", delay=True
            )
            handler.setFormatter(logging.Formatter("%(message)s"))
            logger.addHandler(handler)
            self._files[name] = logger
        return self._files[name]

    def _write_terminal(self) -> None:
        while (text := self._waiting.get()) is not None:
            if self._dropped:
                text, self._dropped = f"({self._dropped} lines not shown)\n{text}", 0
            try:
                sys.stdout.write(text + "\n")
                sys.stdout.flush()
            except (OSError, ValueError):
                return  # the terminal is gone; the files remain
