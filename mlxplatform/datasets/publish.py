"""Writing a version's files: in a private folder, fsynced, checksummed, then published by one rename.

Knows folders and bytes, no models and no jobs. A run that dies in between leaves only a private folder, which the
next attempt of the same version removes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from django.core.files.storage import default_storage

ROOT = "datasets"
#: Bytes read at once.
COPY_BYTES = 1024 * 1024


def to_line(row: Mapping[str, Any]) -> bytes:
    """One compact JSON object and a line feed, UTF-8, every character as itself."""
    return msgspec.json.encode(row) + b"\n"


class Counted:
    """A file that is hashed and counted as it is written."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("xb")
        self._hash = hashlib.sha256()
        self.bytes = 0
        self.rows = 0

    def write(self, data: bytes, rows: int = 0) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.bytes += len(data)
        self.rows += rows

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> dict[str, Any]:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return {"bytes": self.bytes, "sha256": self._hash.hexdigest(), "rows": self.rows}


@dataclass(frozen=True)
class Published:
    """Where the files lie in the artefact storage and what each holds."""

    location: str
    files: dict[str, dict[str, Any]]


class Publication:
    """A version's folder while it is written. ``finish`` publishes it; leaving without that removes it.

    ``attempt`` (the job's fence) keeps two attempts apart: the loser's folder is never read.
    """

    def __init__(self, dataset: str, version: int, attempt: int) -> None:
        self.location = f"{ROOT}/{dataset}/v{version}-{attempt}"
        self._final = Path(default_storage.path(self.location))
        self._private = self._final.with_name(f".{self._final.name}.part")
        self._open: dict[str, Counted] = {}

    def __enter__(self) -> Publication:
        shutil.rmtree(self._private, ignore_errors=True)
        self._private.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.close()
        shutil.rmtree(self._private, ignore_errors=True)

    def file(self, name: str) -> Counted:
        if name not in self._open:
            self._open[name] = Counted(self._private / name)
        return self._open[name]

    def rows(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        out = self.file(name)
        for row in rows:
            out.write(to_line(row), rows=1)

    def lines(self, name: str) -> Iterator[bytes]:
        """The lines of an own file so far."""
        self._open[name].flush()
        with (self._private / name).open("rb", COPY_BYTES) as file:
            yield from file

    def drain_lines(self, name: str) -> Iterator[bytes]:
        """The lines of an own file that is read once more and then dropped."""
        self._open.pop(name).close()
        path = self._private / name
        with path.open("rb", COPY_BYTES) as file:
            yield from file
        path.unlink()

    def finish(self, meta: Mapping[str, Any]) -> Published:
        """Close the files, add ``meta.json`` with their checksums, fsync, rename."""
        files = {name: file.close() for name, file in self._open.items()}
        self._open.clear()
        described = json.dumps({**meta, "files": files}, ensure_ascii=False, indent=2, allow_nan=False).encode() + b"\n"
        self.file("meta.json").write(described)
        files["meta.json"] = self._open.pop("meta.json").close()
        _sync_folder(self._private)
        shutil.rmtree(self._final, ignore_errors=True)
        self._private.rename(self._final)
        _sync_folder(self._final.parent)
        return Published(self.location, files)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(dataset: str, version: int, keep: str) -> None:
    """Delete folders of losing attempts of a version that is published at ``keep``."""
    parent = Path(default_storage.path(f"{ROOT}/{dataset}"))
    if not parent.is_dir():
        return
    for folder in parent.iterdir():
        name = folder.name.removeprefix(".").removesuffix(".part")
        if name.startswith(f"v{version}-") and f"{ROOT}/{dataset}/{folder.name}" != keep:
            shutil.rmtree(folder, ignore_errors=True)


def path_of(location: str, name: str) -> Path:
    """A published file's path on this machine."""
    return Path(default_storage.path(f"{location}/{name}"))
