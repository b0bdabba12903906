"""What a trainer child says: one JSON object per line on stdout, read by its supervisor.

``{"event": "stage", "name", "progress"}``, ``{"event": "metric", "kind", "step", ...}``,
``{"event": "log", "line"}``, ``{"event": "done", ...}`` or ``{"event": "failed", "code", "message", "param"}``. The
original stdout is kept for this alone: :func:`claim_stdout` points everything else that prints at stderr.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any, TextIO

#: Exit status of a failure that was explained by a ``failed`` line.
EXPLAINED = 3


class Explained(Exception):
    """A failure with a code and a sentence for the job's page: no path, no class name.

    ``param`` is the field of the order that is to blame, where one is.
    """

    def __init__(self, code: str, message: str, param: str | None = None):
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


_lock = threading.Lock()
_out: TextIO = sys.stdout


def claim_stdout() -> None:
    """Keep stdout for events; libraries that print go to stderr from now on."""
    global _out
    sys.stdout.flush()
    _out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)


def emit(event: str, **fields: Any) -> None:
    line = json.dumps({"event": event, **fields}, ensure_ascii=False, allow_nan=False)
    with _lock:
        _out.write(line + "\n")
        _out.flush()


def stage(name: str, progress: float | None = None, message: str = "", **extra: Any) -> None:
    fields: dict[str, Any] = {"name": name, **extra}
    if progress is not None:
        fields["progress"] = round(progress, 4)
    if message:
        fields["message"] = message
    emit("stage", **fields)


def done(**result: Any) -> None:
    emit("done", **result)


def failed(code: str, message: str, param: str | None = None) -> int:
    """Say why it ends; answers the exit status to use."""
    emit("failed", code=code, message=message, param=param)
    return EXPLAINED
