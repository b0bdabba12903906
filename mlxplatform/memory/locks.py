"""Who may write to a vault now: file locks that a killed process cannot leave behind, and git's own lock files.

Ours are ``flock`` locks beside the vault: the kernel drops them with their process, however it dies. Git's
are plain files, so a kill leaves them; whether one is abandoned is decided by who lives and how old it is,
never by impatience.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

#: Age from which a git lock file with no living owner is taken for left behind, seconds. Younger ones may belong
#: to a process on another machine, or to one that could not be looked at.
ABANDONED_AFTER_S = 20
#: Pause between two tries for a lock, seconds.
POLL_S = 0.1


class LockBusy(Exception):
    """Somebody else holds the lock for longer than the caller would wait."""


class FileLock:
    """An exclusive lock between processes and threads. Re-entry is a deadlock: take it once, pass it down."""

    def __init__(self, path: Path):
        self.path = path
        self._file: int | None = None

    def acquire(self, wait_s: float, check: Callable[[], None] | None = None) -> None:
        """Take the lock, calling ``check`` while waiting so that a waiter can be told to stop.

        Raises:
            LockBusy: not within ``wait_s``.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + wait_s
        try:
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise LockBusy(self.path.name) from None
                if check:
                    check()
                time.sleep(POLL_S)
        except BaseException:
            os.close(handle)
            raise
        self._file = handle

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class WriteLock(FileLock):
    """The right to change a vault's files and history. Notes in its file while git runs, for the next holder."""

    predecessor_died = False

    def acquire(self, wait_s: float, check: Callable[[], None] | None = None) -> None:
        super().acquire(wait_s, check)
        assert self._file is not None
        self.predecessor_died = os.pread(self._file, 1, 0) == b"g"

    @contextmanager
    def in_git(self) -> Iterator[None]:
        """Around a git command that takes git's own locks: a note that stays if we die meanwhile."""
        assert self._file is not None
        os.pwrite(self._file, b"git", 0)
        try:
            yield
        finally:
            os.ftruncate(self._file, 0)
            self.predecessor_died = False


def is_abandoned(lock: Path, repository: Path, *, predecessor_died: bool) -> bool:
    """Whether a git lock file can be removed: nobody alive has it, and it is ours or old."""
    try:
        age = time.time() - lock.stat().st_mtime
    except OSError:
        return False
    if _someone_has(lock, repository):
        return False
    return predecessor_died or age >= ABANDONED_AFTER_S


def _someone_has(lock: Path, repository: Path) -> bool:
    processes = Path("/proc")
    if not (processes / "self" / "fd").exists():
        return _open_by_lsof(lock)
    wanted, root = str(lock), str(repository)
    for process in processes.iterdir():
        if not process.name.isdigit():
            continue
        try:
            if (process / "comm").read_text().strip().startswith("git"):
                inside = str((process / "cwd").readlink())
                if inside == root or inside.startswith(root + "/"):
                    return True
            if any(str(fd.readlink()) == wanted for fd in (process / "fd").iterdir()):
                return True
        except OSError:
            continue  # It ended meanwhile, or belongs to another user: its age decides.
    return False


def _open_by_lsof(lock: Path) -> bool:
    program = shutil.which("lsof")
    if program is None:
        return False
    try:
        found = subprocess.run([program, "-t", "--", str(lock)], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return True
    return bool(found.stdout.strip())
