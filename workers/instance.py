"""One running platform per data directory: the lock, the record of its processes, and what a killed one left.

The lock dies with the supervisor, so a free lock with recorded processes still alive means that a supervisor
was killed and its children have not noticed yet: they are ended before anything new starts, and no stale
process ever works beside its successor.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

#: Seconds a leftover process may take to end by itself (its lifeline is cut) before it is killed.
LEFTOVER_GRACE = 4.0


def _reason(error: OSError) -> str:
    return (error.strerror or "unknown reason").lower()


class CannotStart(Exception):
    """Why the platform does not start, in one sentence for a person."""


def take_lock(home: Path) -> IO[str]:
    """The exclusive right to run on ``home``; held until the returned file is closed.

    Raises:
        CannotStart: the directory cannot be used, or somebody runs on it already.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = open(home / "lock", "a+")
    except OSError as error:
        raise CannotStart(f"the data directory {home} cannot be written: {_reason(error)}.") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        owner = lock.read().strip()
        lock.close()
        raise CannotStart(
            f"the data directory {home} is already in use by a running platform{f' (pid {owner})' if owner else ''}; "
            "stop that one, or choose another directory with MLXPLATFORM_HOME."
        ) from None
    try:
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
    except OSError as error:
        lock.close()
        raise CannotStart(f"nothing can be written to {home}: {_reason(error)}.") from None
    return lock


def record(home: Path, processes: Mapping[str, int]) -> None:
    """Write down which pids belong to this run. Losing the record to a full disk only costs the clean-up."""
    target = home / "processes.json"
    try:
        draft = target.with_suffix(".new")
        draft.write_text(json.dumps(processes))
        draft.replace(target)
    except OSError:
        pass


def recorded(home: Path) -> dict[str, int]:
    try:
        found = json.loads((home / "processes.json").read_text())
    except (OSError, ValueError):
        return {}
    return {name: pid for name, pid in found.items() if isinstance(pid, int)} if isinstance(found, dict) else {}


def is_ours(pid: int) -> bool:
    """Whether ``pid`` still is a process of the platform, not a stranger with a recycled number."""
    answer = subprocess.run(["/bin/ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return any(word in answer.stdout for word in ("-m workers.", "-m mlxplatform."))


def end_leftovers(home: Path) -> list[str]:
    """End what a killed supervisor left running. Returns the names of what had to be killed.

    The broker is left alone: it is adopted by :mod:`workers.broker_process`, which lets it write its log first.
    """
    left = {name: pid for name, pid in recorded(home).items() if name != "supervisor" and is_ours(pid)}
    deadline = time.monotonic() + LEFTOVER_GRACE
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = {name: pid for name, pid in left.items() if is_ours(pid)}
    for name, pid in left.items():
        try:
            if name != "broker":
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    return sorted(left)
