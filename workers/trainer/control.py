"""What the supervisor tells a trainer child while it works, read from stdin by a thread.

The first line is the task. Later lines are ``{"op": ...}``: ``cancel`` (stop, keep nothing), ``pause`` (stop
after writing a checkpoint), ``finish`` (train no further and publish what there is), ``yield`` and ``continue``
(let somebody else use the GPU between two steps). End of input means that the supervisor is gone: the child ends
at once, and its checkpoints stay for the next attempt.

The main thread asks :meth:`Control.between_steps`; nothing is ever interrupted inside a native call. A wish to finish
interrupts nothing: whoever has something to publish looks at :attr:`Control.finishing` where that is so.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO

from workers.trainer import report


class Stop(Exception):
    """The supervisor asked for an end; ``op`` is cancel or pause."""

    def __init__(self, op: str):
        super().__init__(op)
        self.op = op


class Control:
    """The supervisor's wishes. ``on_yield`` gives memory back before the child waits for ``continue``."""

    def __init__(self, source: BinaryIO | None = None, on_yield: Callable[[], None] | None = None):
        self._source = source if source is not None else sys.stdin.buffer
        self._changed = threading.Condition()
        self._stop = ""
        self._yielding = False
        #: A person wants what there is, as soon as there is something.
        self.finishing = False
        self.on_yield = on_yield

    def read_task(self) -> dict[str, Any]:
        """The task; from then on a thread reads wishes."""
        task: dict[str, Any] = json.loads(self._source.readline())
        threading.Thread(target=self._listen, name="control", daemon=True).start()
        return task

    def between_steps(self) -> None:
        """Wait while the GPU is lent out, and end when asked to.

        Raises:
            Stop: the supervisor asked for an end.
        """
        if not self._stop and not self._yielding:
            return
        with self._changed:
            if self._yielding and not self._stop:
                if self.on_yield is not None:
                    self.on_yield()
                report.emit("yielded")
                self._changed.wait_for(lambda: self._stop or not self._yielding)
                report.emit("resumed")
        if self._stop:
            raise Stop(self._stop)

    def _listen(self) -> None:
        for line in self._source:
            try:
                op = json.loads(line).get("op")
            except (ValueError, AttributeError):
                continue
            with self._changed:
                if op in {"cancel", "pause"}:
                    # The strictest wish wins: a cancel after a pause is a cancel.
                    self._stop = op if op == "cancel" or not self._stop else self._stop
                elif op == "finish":
                    self.finishing = True
                elif op in {"yield", "continue"}:
                    self._yielding = op == "yield"
                self._changed.notify_all()
        os._exit(1)
