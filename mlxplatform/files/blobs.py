"""Bytes on disk: written in a private place, flushed to the device, published by one rename.

A name is a server-made id; two levels of folders keep directories small. Whatever stops in the middle leaves only
something in the incoming folder, which nobody reads and the sweep removes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from django.conf import settings

from mlxplatform import paths
from mlxplatform.inference.contract import Refusal

#: Bytes copied at once.
PIECE = 1024 * 1024
#: Seconds after which something in the incoming folder belongs to nobody.
STALE_S = 6 * 3600


@dataclass(frozen=True)
class Written:
    """What was published."""

    bytes: int
    sha256: str
    md5: str


def root() -> Path:
    return paths.artefacts_dir(settings.HOME) / "files"


def path_of(blob_id: str) -> Path:
    """Where a blob lies. The id is ours; this refuses anything that could be a path."""
    if not blob_id.replace("-", "").replace("_", "").isalnum():
        raise ValueError("not a blob id")
    return root() / blob_id[-2:] / blob_id


@contextmanager
def incoming() -> Iterator[tuple[BinaryIO, Path]]:
    """A private file to write; gone afterwards unless it was published."""
    folder = root() / "incoming"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / secrets.token_hex(16)
    try:
        with path.open("xb") as file:
            yield file, path
    finally:
        path.unlink(missing_ok=True)


def publish(file: BinaryIO, path: Path, blob_id: str) -> None:
    """Make the written file the blob, durably."""
    file.flush()
    os.fsync(file.fileno())
    target = path_of(blob_id)
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write(blob_id: str, pieces: Iterable[bytes], *, limit: int | None = None) -> Written:
    """Store ``pieces`` as one blob.

    Raises:
        Refusal: 413 above ``limit`` bytes, 507 when the disk is full. Nothing is left of it then.
    """
    size, sha, md5 = 0, hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    try:
        with incoming() as (file, path):
            for piece in pieces:
                size += len(piece)
                if limit is not None and size > limit:
                    raise Refusal(413, "file_too_large", f"The file is larger than the limit of {limit} bytes.", param="file")
                file.write(piece)
                sha.update(piece)
                md5.update(piece)
            publish(file, path, blob_id)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise Refusal(507, "disk_full", "The server has no space left for this file.") from None
        raise
    return Written(size, sha.hexdigest(), md5.hexdigest())


def pieces_of(blob_id: str) -> Iterator[bytes]:
    with path_of(blob_id).open("rb") as file:
        while piece := file.read(PIECE):
            yield piece


def remove(blob_id: str) -> None:
    path_of(blob_id).unlink(missing_ok=True)


def remove_stale() -> int:
    """Empty the incoming folder of what a killed process left."""
    folder, removed = root() / "incoming", 0
    if folder.is_dir():
        for path in folder.iterdir():
            if time.time() - path.stat().st_mtime > STALE_S:
                path.unlink(missing_ok=True)
                removed += 1
    return removed


def stored_ids() -> Iterator[str]:
    """Every blob on disk."""
    for folder in root().glob("??"):
        for path in folder.iterdir():
            yield path.name
