"""Which reader a file gets: by what was asked for, by its first bytes, by its ending.

Knows names and magic numbers; the readers beside this module know the formats.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from mlxplatform.datasets.imports import arrayrows, arrowrows, csvrows
from mlxplatform.datasets.imports.items import Item, Problem, Unreadable, named
from mlxplatform.datasets.imports.quick import QuickReader
from mlxplatform.files import jsonl

FORMATS = ("auto", "jsonl", "json", "csv", "parquet", "arrow")
ENDINGS = {
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "json": "json",
    "csv": "csv",
    "tsv": "csv",
    "parquet": "parquet",
    "arrow": "arrow",
}
GZIP = b"\x1f\x8b"
#: Bytes looked at to tell what a file is.
PEEKED = 4096
#: Times its size that a gzip file may unpack to (rows that repeat each other reach a hundred), and bytes that always may.
MOST_UNPACKED, ALWAYS_UNPACKED = 300, 1024**3
#: Bytes unpacked at once.
READ_BYTES = 128 * 1024
#: First bytes of what people send by mistake, and what to do about it.
MISTAKEN = (
    (b"PK\x03\x04", "archive", "is a ZIP archive or an Excel workbook. Unpack it, or save the sheet as CSV."),
    (b"\xd0\xcf\x11\xe0", "archive", "is an old Excel or Word document. Save the sheet as CSV."),
    (b"BZh", "archive", "is compressed with bzip2. Unpack it, or compress it with gzip."),
    (b"\xfd7zXZ", "archive", "is compressed with xz. Unpack it, or compress it with gzip."),
    (b"7z\xbc\xaf", "archive", "is a 7z archive. Unpack it."),
    (b"\x28\xb5\x2f\xfd", "archive", "is compressed with Zstandard. Unpack it, or compress it with gzip."),
    (b"%PDF", "not_rows", "is a PDF document. Export the data as JSON Lines or CSV."),
    (b"SQLite format 3", "not_rows", "is an SQLite database. Export the table as CSV."),
    (b"version https://git-lfs", "not_rows", "is a Git LFS pointer, not the data itself. Fetch it with git lfs pull."),
    (b"<!doctype html", "not_rows", "is a web page, not data. Download the raw file."),
    (b"<html", "not_rows", "is a web page, not data. Download the raw file."),
    (b"{\\rtf", "not_rows", "is a formatted text document (RTF). Save it as plain text, JSON Lines or CSV."),
    (b"<?xml", "not_rows", "is an XML document. Export the data as JSON Lines or CSV."),
    (b"\x1f\x8b", "archive", "is compressed twice with gzip. Unpack it once."),
    (b"\x80\x04\x95", "not_rows", "is a Python pickle, which can run code when it is read. Save the rows as JSON Lines."),
    (b"\x80\x05\x95", "not_rows", "is a Python pickle, which can run code when it is read. Save the rows as JSON Lines."),
    (b"\x93NUMPY", "not_rows", "is a NumPy array. Save the rows as JSON Lines."),
    (b"\x89HDF", "not_rows", "is an HDF5 file. Save the rows as JSON Lines or Parquet."),
    (b"\x89PNG", "not_rows", "is a picture."),
    (b"\xff\xd8\xff", "not_rows", "is a picture."),
    (b"\xff\xfe\x00\x00", "utf16", "is encoded as UTF-32. Save it as UTF-8."),
    (b"\x00\x00\xfe\xff", "utf16", "is encoded as UTF-32. Save it as UTF-8."),
    (b"\xff\xfe", "utf16", "is encoded as UTF-16. Save it as UTF-8."),
    (b"\xfe\xff", "utf16", "is encoded as UTF-16. Save it as UTF-8."),
)
#: Where a tar archive names itself.
TAR, TAR_AT = b"ustar", 257
_SPLIT = re.compile(r"(?:^|[^a-z])(train|validation|valid|val|dev|test)(?:[^a-z]|$)", re.IGNORECASE)
_SPLITS = {"train": "train", "validation": "valid", "valid": "valid", "val": "valid", "dev": "valid", "test": "test"}


def format_of(name: str, asked: str = "auto") -> str:
    """The format by the file's ending, unless one was asked for."""
    if asked != "auto":
        return asked
    return ENDINGS.get(name.lower().removesuffix(".gz").rpartition(".")[2], "jsonl")


def split_of(name: str) -> str:
    """train, valid or test when the file's name says so, or the name of a folder it is in is just that; else ""."""
    *folders, file = name.split("/")
    found = _SPLIT.search(file)
    if found:
        return _SPLITS[found.group(1).lower()]
    return next((_SPLITS[folder.lower()] for folder in reversed(folders) if folder.lower() in _SPLITS), "")


def open_path(path: Path) -> BinaryIO:
    return unpacked(path.open("rb"))


def unpacked(raw: BinaryIO) -> BinaryIO:
    """The stream, through gzip when it begins like that. Both can be peeked into and rewound."""
    stream = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw)  # type: ignore[type-var]
    if stream.peek(2)[:2] == GZIP:
        return cast(BinaryIO, io.BufferedReader(_Unpacked(stream), READ_BYTES))
    return cast(BinaryIO, stream)


class _Unpacked(io.RawIOBase):
    """What a gzip file holds, up to the point where it is plainly made to fill a disk."""

    def __init__(self, packed: Any) -> None:
        self._longest = max(ALWAYS_UNPACKED, packed.seek(0, io.SEEK_END) * MOST_UNPACKED)
        packed.seek(0)
        self._inner = gzip.GzipFile(fileobj=packed, mode="rb")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._inner.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        read = self._inner.readinto(buffer)
        if self._inner.tell() > self._longest:
            raise Unreadable("archive", f"The file unpacks to more than {MOST_UNPACKED} times its size. Unpack it yourself.")
        return read

    def close(self) -> None:
        self._inner.close()
        super().close()


def items(stream: BinaryIO, form: str, name: str = "", quick: QuickReader | None = None) -> Iterator[Item]:
    """Every row of a file; JSON Lines of the usual shapes through ``quick``.

    Raises:
        Unreadable: the file is of another format, or broken as a whole.
    """
    try:
        start = stream.read(PEEKED)
        stream.seek(0)
        form = _by_content(start, form, name)
        if form == "jsonl":
            yield from _jsonl(stream, name, quick)
        elif form == "json":
            yield from arrayrows.read(stream, name)
        elif form == "csv":
            yield from csvrows.read(stream, name)
        else:
            yield from arrowrows.read(stream, form, name)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise Unreadable("broken_archive", f"{named(name)} is a broken or cut-off gzip file.") from None


def _by_content(start: bytes, form: str, name: str) -> str:
    """The format by the first bytes, where they leave no doubt.

    Raises:
        Unreadable: something that holds no rows, named.
    """
    if start.startswith(b"PAR1"):
        return "parquet"
    if start.startswith(b"ARROW1") or form == "arrow":
        return "arrow"
    looked = start.lstrip().lower() if start[:1] in b" \r\n\t<" else start
    for magic, code, sentence in MISTAKEN:
        if looked.startswith(magic) or start.startswith(magic):
            raise Unreadable(code, f"{named(name)} {sentence}")
    if start[TAR_AT : TAR_AT + len(TAR)] == TAR:
        raise Unreadable("archive", f"{named(name)} is a tar archive. Unpack it.")
    if form == "parquet":
        return form
    if start[1:2] == b"\x00" or (start[:1] == b"\x00" and start[1:2] not in (b"", b"\x00")):
        raise Unreadable("utf16", f"{named(name)} is encoded as UTF-16 or UTF-32. Save it as UTF-8.")
    text = start.removeprefix(jsonl.BOM).lstrip()
    if form == "csv" and text.startswith((b'{"', b"[{", b"[\n", b"[\r")):
        return "jsonl"
    return form


def _jsonl(stream: BinaryIO, name: str, quick: QuickReader | None) -> Iterator[Item]:
    try:
        for item in jsonl.rows(stream, quick=quick):
            if isinstance(item, jsonl.BadLine):
                yield Problem(f"line {item.line}", item.code, item.reason, item.column, name)
            else:
                yield f"line {item[0].number}", item[1]
    except jsonl.NotLines as error:
        if error.code not in ("array", "pretty"):
            raise Unreadable(error.code, error.message) from None
        stream.seek(0)
        yield from arrayrows.read(stream, name)
