"""How a model directory comes into being: whole, or not at all.

A writer fills a private directory beside the final place; :func:`publish` flushes every file, then renames
the directory once. Whoever dies on the way leaves only a private directory, which no scan lists and which
:func:`sweep` removes when nobody holds its lock any more. An existing target is never replaced.

Knows nothing of what a model is, of Django or of mlx.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

#: Prefix of a directory that is still being written.
PRIVATE_PREFIX = ".partial-"
#: Written into every published directory: where it came from and by what.
PROVENANCE = "provenance.json"
_LOCK = ".lock"
#: Seconds within which a private directory without a lock may be one that is being made.
_YOUNG = 3600
#: One name, or owner/name; every part starts with a letter or digit, so that no part is a step upwards.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)?")
#: Longest id; leaves room for suffixes within 255 bytes of file name.
MAX_ID = 128


class NameTaken(Exception):
    """The target already exists; nothing was changed."""


def is_model_id(value: object) -> bool:
    """Whether a value could name a model at all: never a path, a URL or a name with hidden meaning."""
    return isinstance(value, str) and len(value) <= MAX_ID and _ID.fullmatch(value) is not None and ".." not in value


@contextmanager
def private_directory(root: Path) -> Iterator[Path]:
    """A locked private directory under ``root``, removed on leaving unless it was published."""
    root.mkdir(parents=True, exist_ok=True)
    folder = root / f"{PRIVATE_PREFIX}{secrets.token_hex(6)}"
    folder.mkdir()
    with open(folder / _LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def publish(folder: Path, root: Path, model_id: str) -> Path:
    """Make a filled private directory visible as ``model_id``.

    Raises:
        NameTaken: somebody published that name first.
        ValueError: not a model id.
    """
    if not is_model_id(model_id):
        raise ValueError("not a model id")
    target = root / model_id
    target.parent.mkdir(parents=True, exist_ok=True)
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            _fsync(path)
    for path in [*(p for p in folder.rglob("*") if p.is_dir()), folder]:
        _fsync(path)
    # rename() replaces an empty directory silently, so an existing one is looked for first; a full one it refuses.
    if target.exists() or target.is_symlink():
        raise NameTaken(model_id)
    try:
        folder.rename(target)
    except OSError as error:
        if error.errno in {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}:
            raise NameTaken(model_id) from None
        raise
    (target / _LOCK).unlink(missing_ok=True)
    _fsync(target.parent)
    return target


def remove(root: Path, model_id: str) -> None:
    """Take a model out of sight with one rename, then delete its files."""
    if not is_model_id(model_id):
        raise ValueError("not a model id")
    doomed = root / f"{PRIVATE_PREFIX}{secrets.token_hex(6)}"
    (root / model_id).rename(doomed)
    _fsync(root)
    shutil.rmtree(doomed, ignore_errors=True)


def sweep(root: Path) -> int:
    """Delete private directories whose writer is gone; answers how many."""
    return sum(remove_left(folder) for folder in root.glob(f"{PRIVATE_PREFIX}*"))


def is_left(folder: Path) -> bool:
    """Whether the writer of a private directory is gone."""
    return _if_left(folder, lambda: None)


def remove_left(folder: Path) -> bool:
    """Delete a private directory whose writer is gone; answers whether it did."""
    return _if_left(folder, lambda: shutil.rmtree(folder, ignore_errors=True)) and not folder.exists()


def _if_left(folder: Path, then: Callable[[], None]) -> bool:
    """Do it, with the lock held, when nobody else holds it."""
    try:
        with open(folder / _LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            then()
    except BlockingIOError:
        return False
    except FileNotFoundError:  # made this instant, or doomed by remove(): age decides
        if datetime.now(UTC).timestamp() - _mtime(folder) < _YOUNG:
            return False
        then()
    return True


def provenance(folder: Path) -> dict[str, Any]:
    """What was noted; empty when there is no such directory or nothing was."""
    try:
        facts = json.loads((folder / PROVENANCE).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def write_provenance(folder: Path, **facts: Any) -> None:
    """Note in the directory itself where it came from."""
    facts = {"made_at": datetime.now(UTC).isoformat(timespec="seconds"), **facts}
    (folder / PROVENANCE).write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
