"""A backup: one tar file with the database, the artefacts and the memory vaults, and a manifest of checksums.

::

    manifest.json          version, time, and SHA-256 and size of every member
    db.sqlite3             a consistent copy of the live database
    home/<path>            every other file of the data directory that is worth keeping

Written under a temporary name and renamed when whole. Reading verifies every checksum before anything is
unpacked, so a damaged archive changes nothing. An archive may come from anywhere: it holds plain files under names
that a backup gives, each once, and no more than fits on the disk. What can be made again is left out: broker state,
logs, static files, caches and, unless asked for, model weights.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO

from mlxplatform import __version__
from mlxplatform.operations import database

#: Names directly under the data directory that are never part of a backup.
LEFT_OUT = frozenset({"broker", "logs", "static", "cache", "backups", "tmp", "lock", "models"})
_DATABASE = "db.sqlite3"
_MANIFEST = "manifest.json"
_CHUNK = 1 << 20
#: Bytes of a manifest: a million files fit. It is the one member that is read into memory.
_MANIFEST_LIMIT = 256 << 20


class Damaged(Exception):
    """The archive cannot be trusted; the message says why."""


class NoRoom(Exception):
    """The archive unpacks to more than there is room for."""


@dataclass(frozen=True)
class Member:
    """One file of a backup."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Manifest:
    version: str
    made_at: str
    members: dict[str, Member]

    @property
    def total_bytes(self) -> int:
        return sum(member.size for member in self.members.values())


def write(home: Path, target: Path, *, models: bool = False) -> Manifest:
    """Back ``home`` up into the new file ``target``.

    Raises:
        FileExistsError: ``target`` exists.
        database.NotAFile: the database is a server's.
    """
    if target.exists():
        raise FileExistsError(17, "already exists", str(target))
    handle, scratch_name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    scratch = Path(scratch_name)
    members: dict[str, Member] = {}
    try:
        with tempfile.TemporaryDirectory(dir=target.parent) as folder, os.fdopen(handle, "wb") as out:
            copy = Path(folder) / _DATABASE
            database.copy_to(copy)
            with tarfile.open(fileobj=out, mode="w|gz") as tar:
                if (member := _add(tar, copy, _DATABASE)) is not None:
                    members[_DATABASE] = member
                for path in _kept(home, models=models):
                    name = f"home/{path.relative_to(home).as_posix()}"
                    if (member := _add(tar, path, name)) is not None:
                        members[name] = member
                manifest = Manifest(__version__, datetime.now(UTC).isoformat(timespec="seconds"), members)
                raw = json.dumps(asdict(manifest)).encode()
                info = tarfile.TarInfo(_MANIFEST)
                info.size = len(raw)
                tar.addfile(info, io.BytesIO(raw))
            out.flush()
            os.fsync(out.fileno())
        scratch.rename(target)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    return manifest


def verify(source: Path, room: int | None = None) -> Manifest:
    """Read all of an archive and compare it with its manifest.

    Raises:
        Damaged: anything missing, added, changed, twice there or cut off.
        NoRoom: it unpacks to more than ``room`` bytes; found by what it says of itself, before it is read.
    """
    seen: dict[str, Member] = {}
    manifest: Manifest | None = None
    total = 0
    try:
        with tarfile.open(source, mode="r|gz") as tar:
            for info in tar:
                # A sparse file is a few bytes that say how many there are.
                content = tar.extractfile(info) if info.isfile() and not info.issparse() else None
                if content is None or not _is_safe(info.name):
                    raise Damaged(f"it holds {info.name!r}, which no backup contains")
                if info.name in seen or (info.name == _MANIFEST and manifest is not None):
                    raise Damaged(f"it holds {info.name!r} twice")
                total += info.size
                if room is not None and total > room:
                    raise NoRoom(f"it unpacks to at least {total} bytes, and {room} are free")
                if info.name != _MANIFEST:
                    seen[info.name] = _digest(content)
                elif info.size <= _MANIFEST_LIMIT:
                    manifest = _manifest(content.read())
    except (tarfile.TarError, EOFError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"it cannot be read to its end ({error})") from None
    if manifest is None:
        raise Damaged("it has no manifest, so it was cut off or is not a backup")
    if manifest.members != seen:
        wrong = sorted(name for name in manifest.members.keys() | seen.keys() if manifest.members.get(name) != seen.get(name))
        raise Damaged(f"{wrong[0]!r} is not what was backed up")
    if folders := seen.keys() & {str(folder) for name in seen for folder in PurePosixPath(name).parents}:
        raise Damaged(f"it holds {min(folders)!r} as a file and as a folder")
    if _DATABASE not in seen:
        raise Damaged("it has no database")
    return manifest


def restore(source: Path, home: Path) -> Manifest:
    """Replace ``home``'s database and files with the archive's; models and logs stay.

    Everything is verified and unpacked beside ``home`` first; then names are swapped one by one, and what was
    there before is kept in ``home/backups/replaced-<time>``.

    Raises:
        Damaged, NoRoom: see :func:`verify`; nothing was touched.
    """
    home.mkdir(parents=True, exist_ok=True)
    manifest = verify(source, shutil.disk_usage(home).free)
    with tempfile.TemporaryDirectory(prefix=".restore-", dir=home) as scratch_name:
        scratch = Path(scratch_name)
        with tarfile.open(source, mode="r|gz") as tar:
            for info in tar:
                content = tar.extractfile(info)
                if info.name != _MANIFEST and content is not None:
                    target = scratch / info.name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with target.open("wb") as out:
                        shutil.copyfileobj(content, out, _CHUNK)
                    target.chmod(info.mode & 0o700)
        problem = database.check(scratch / _DATABASE)
        if problem:
            raise Damaged(f"its database is broken: {problem}")
        replaced = home / "backups" / f"replaced-{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        replaced.mkdir(parents=True)
        for name in ("db.sqlite3", "db.sqlite3-wal", "db.sqlite3-shm"):
            if (home / name).exists():
                (home / name).rename(replaced / name)
        unpacked = scratch / "home"
        for entry in sorted(unpacked.iterdir()) if unpacked.is_dir() else []:
            if (home / entry.name).exists():
                shutil.move(home / entry.name, replaced / entry.name)
            entry.rename(home / entry.name)
        (scratch / _DATABASE).rename(home / _DATABASE)
    return manifest


def _kept(home: Path, *, models: bool) -> Iterator[Path]:
    for entry in sorted(home.iterdir()):
        if not _is_kept(entry.name, models=models) or entry.is_symlink():
            continue
        if entry.is_file():
            yield entry
        elif entry.is_dir():
            yield from (path for path in sorted(entry.rglob("*")) if path.is_file() and not path.is_symlink())


def _add(tar: tarfile.TarFile, path: Path, name: str) -> Member | None:
    """Add one file as it is now; None when it went away meanwhile."""
    try:
        content = path.open("rb")
    except FileNotFoundError:
        return None
    with content:
        info = tar.gettarinfo(arcname=name, fileobj=content)
        reader = _Hashing(content, info.size)
        tar.addfile(info, reader)
        return Member(reader.digest.hexdigest(), info.size)


class _Hashing(io.RawIOBase):
    """Hashes what is read, and never gives more than ``size`` bytes of a file that grows meanwhile."""

    def __init__(self, inner: IO[bytes], size: int):
        self.inner, self.left, self.digest = inner, size, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        part = self.inner.read(self.left if size < 0 else min(size, self.left))
        self.left -= len(part)
        self.digest.update(part)
        return part


def _digest(content: IO[bytes]) -> Member:
    digest, size = hashlib.sha256(), 0
    while part := content.read(_CHUNK):
        digest.update(part)
        size += len(part)
    return Member(digest.hexdigest(), size)


def _manifest(raw: bytes) -> Manifest:
    parsed = json.loads(raw)
    members = {name: Member(**member) for name, member in parsed["members"].items()}
    return Manifest(parsed["version"], parsed["made_at"], members)


def _is_safe(name: str) -> bool:
    """Whether a backup gives this name, in this spelling."""
    path = PurePosixPath(name)
    if name in {_MANIFEST, _DATABASE}:
        return True
    if path.as_posix() != name or ".." in path.parts or len(path.parts) < 2 or path.parts[0] != "home":
        return False
    return _is_kept(path.parts[1], models=True)


def _is_kept(name: str, *, models: bool) -> bool:
    """Whether what has this name directly under the data directory belongs into a backup."""
    left_out = name in LEFT_OUT and not (models and name == "models")
    return not left_out and not name.startswith((".", _DATABASE))
