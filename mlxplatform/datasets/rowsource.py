"""The rows of a version wherever they are kept: in SQL while they are made, in its files once it is ready.

Files are the truth of a ready version; imported versions have nothing else. Reading by place uses the index
beside the files, one offset for every block of rows.
"""

from __future__ import annotations

import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, BinaryIO, overload

import msgspec

from mlxplatform.datasets import publish, rowtext
from mlxplatform.datasets.models import DatasetRow, DatasetVersion

#: Files with rows, in the order in which their rows count.
ROW_FILES = ("train.jsonl", "valid.jsonl", "test.jsonl")
INDEX = "rows.index"
#: Rows between two offsets of the index.
BLOCK = 256

_decode = msgspec.json.Decoder().decode


def in_files(version: DatasetVersion) -> bool:
    """Whether the version's rows are only in files (imports)."""
    return INDEX in version.files


def split_files(version: DatasetVersion, split: str = "") -> list[str]:
    return [name for name in ROW_FILES if name in version.files and (not split or name == f"{split}.jsonl")]


def content(version: DatasetVersion, split: str = "") -> Iterator[dict[str, Any]]:
    """Accepted rows in order: of a finished version from its files, else from SQL."""
    if version.files:
        for name in split_files(version, split):
            with publish.path_of(version.location, name).open("rb") as file:
                for line in file:
                    yield _decode(line)
        return
    rows = version.rows.filter(state=DatasetRow.State.ACCEPTED)
    if split:
        rows = rows.filter(split=split)
    for made in rows.order_by("ordinal").values_list("content", flat=True).iterator(chunk_size=500):
        yield made or {}


def window(version: DatasetVersion, start: int, count: int, split: str = "") -> list[tuple[int, str, dict[str, Any]]]:
    """(place from 0 in the version or split, split's name, row) of ``count`` rows from ``start``, by the index."""
    found: list[tuple[int, str, dict[str, Any]]] = []
    offsets = _index(version)
    before = position = 0
    for name in split_files(version):
        rows = version.files[name]["rows"]
        blocks = -(-rows // BLOCK)
        own = offsets[position : position + blocks]
        position += blocks
        if split and name != f"{split}.jsonl":
            continue
        first = max(start - before, 0)
        if first < rows and len(found) < count:
            with publish.path_of(version.location, name).open("rb") as file:
                for place, line in islice(_from(file, own, first), count - len(found)):
                    found.append((before + place, name.removesuffix(".jsonl"), _decode(line)))
        before += rows
    return found


class FileRows(Sequence[DatasetRow]):
    """The rows of an imported version as unsaved row objects, read page by page."""

    def __init__(self, version: DatasetVersion) -> None:
        self._version = version

    def __len__(self) -> int:
        return sum(self._version.files[name]["rows"] for name in split_files(self._version))

    @overload
    def __getitem__(self, place: int) -> DatasetRow: ...

    @overload
    def __getitem__(self, place: slice) -> list[DatasetRow]: ...

    def __getitem__(self, place: int | slice) -> DatasetRow | list[DatasetRow]:
        if isinstance(place, int):
            return self[place : place + 1][0]
        first, last, _ = place.indices(len(self))
        return [
            DatasetRow(ordinal=number, state=DatasetRow.State.ACCEPTED, split=split, content=row, chars=rowtext.length(row))
            for number, split, row in window(self._version, first, last - first)
        ]


def _from(file: BinaryIO, offsets: array.array[int], first: int) -> Iterator[tuple[int, bytes]]:
    block = first // BLOCK
    file.seek(offsets[block])
    for place, line in enumerate(file, block * BLOCK):
        if place >= first:
            yield place, line


def _index(version: DatasetVersion) -> array.array[int]:
    offsets = array.array("Q")
    offsets.frombytes(publish.path_of(version.location, INDEX).read_bytes())
    return offsets
