"""What a source holds, as a stream of rows with their places: JSON Lines, a JSON array, CSV, Parquet.

Knows formats; nothing of what a row means, of storage or of jobs.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from mlxplatform.files import jsonl

FORMATS = ("auto", "jsonl", "json", "csv", "parquet")
#: Largest JSON array that is read: it has to fit into memory whole, unlike every other format.
MAX_ARRAY = 256 * 1024 * 1024
#: Longest CSV cell, characters.
MAX_CELL = 16 * 1024 * 1024
_DELIMITERS = ",;\t|"
_SPLIT = re.compile(r"(?:^|[^a-z])(train|validation|valid|val|dev|test)(?:[^a-z]|$)", re.IGNORECASE)
_SPLITS = {"validation": "valid", "val": "valid", "dev": "valid"}


@dataclass(frozen=True, slots=True)
class Problem:
    """A row that cannot be used. ``where`` is "line 3", "row 3" or "item 3"; ``column`` counts characters."""

    where: str
    code: str
    reason: str
    column: int | None = None
    file: str = ""
    field: str = ""

    def __str__(self) -> str:
        place = f"{self.file} {self.where}".strip()
        column = f", column {self.column}" if self.column is not None else ""
        field = f"{self.field} " if self.field and self.field != "row" else ""
        return f"{place}{column}: {field}{self.reason}"


class Unreadable(Exception):
    """The source as a whole cannot be read; a sentence for the person."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


#: A row with its place, or why there is none.
Item = tuple[str, dict[str, Any]] | Problem


def format_of(name: str, asked: str = "auto") -> str:
    """The format by the file's ending, unless one was asked for."""
    if asked != "auto":
        return asked
    ending = name.lower().removesuffix(".gz").rpartition(".")[2]
    known = {"jsonl": "jsonl", "ndjson": "jsonl", "json": "json", "csv": "csv", "tsv": "csv", "parquet": "parquet"}
    return known.get(ending, "jsonl")


def split_of(name: str) -> str:
    """train, valid or test when the name says so, else ""."""
    found = _SPLIT.search(name.rpartition("/")[2])
    return _SPLITS.get(found.group(1).lower(), found.group(1).lower()) if found else ""


def open_path(path: Path) -> BinaryIO:
    raw = path.open("rb")
    if raw.read(2) == b"\x1f\x8b":
        raw.close()
        return gzip.open(path, "rb")  # type: ignore[return-value]
    raw.seek(0)
    return raw


def items(stream: BinaryIO, form: str, name: str = "") -> Iterator[Item]:
    """Every row of a file.

    Raises:
        Unreadable: the file is of another format, or broken as a whole.
    """
    reader = {"jsonl": _jsonl, "json": _json, "csv": _csv, "parquet": _parquet}[form]
    try:
        yield from reader(stream, name)
    except (gzip.BadGzipFile, EOFError):
        raise Unreadable("broken_archive", f"{name or 'The file'} is a broken gzip file.") from None


def _jsonl(stream: BinaryIO, name: str) -> Iterator[Item]:
    try:
        for item in jsonl.rows(stream):
            if isinstance(item, jsonl.BadLine):
                yield Problem(f"line {item.line}", item.code, item.reason, item.column, name)
            else:
                yield f"line {item[0].number}", item[1]
    except jsonl.NotLines as error:
        if error.code not in ("array", "pretty"):
            raise Unreadable(error.code, error.message) from None
        stream.seek(0)
        yield from _json(stream, name)


def _json(stream: BinaryIO, name: str) -> Iterator[Item]:
    """One JSON array of objects, or one object; also pretty-printed."""
    raw = stream.read(MAX_ARRAY + 1)
    if len(raw) > MAX_ARRAY:
        raise Unreadable(
            "too_large", f"{name or 'The file'} is one JSON array above {MAX_ARRAY >> 20} MiB; save it as JSON Lines."
        )
    raw = raw.removeprefix(jsonl.BOM)
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if not raw.lstrip().startswith(b"["):
            stream.seek(0)
            yield from _objects_in_lines(stream, name, error)
            return
        line = raw.count(b"\n", 0, _byte_of(error)) + 1
        raise Unreadable("not_json", f"{name or 'The file'} is not valid JSON near line {line}: {error}") from None
    if isinstance(value, dict):
        listed = next((entry for entry in value.values() if isinstance(entry, list)), None)
        value = listed if listed is not None and not any(isinstance(v, str) for v in value.values()) else [value]
    if not isinstance(value, list):
        raise Unreadable("not_rows", f"{name or 'The file'} holds neither objects nor a list of them.")
    for number, row in enumerate(value, 1):
        if isinstance(row, dict):
            yield f"item {number}", row
        else:
            yield Problem(f"item {number}", "not_an_object", "expected an object", file=name)


def _objects_in_lines(stream: BinaryIO, name: str, error: Exception) -> Iterator[Item]:
    """A .json file that really is JSON Lines."""
    found = False
    for item in jsonl.lines(stream):
        value = jsonl.parse(item) if isinstance(item, jsonl.Line) else item
        if isinstance(value, jsonl.BadLine):
            if not found:
                raise Unreadable("not_json", f"{name or 'The file'} is not valid JSON: {error}")
            yield Problem(f"line {value.line}", value.code, value.reason, value.column, name)
        else:
            found = True
            assert isinstance(item, jsonl.Line)
            yield f"line {item.number}", value


def _byte_of(error: Exception) -> int:
    found = re.search(r"byte (\d+)", str(error))
    return int(found.group(1)) if found else 0


def _csv(stream: BinaryIO, name: str) -> Iterator[Item]:
    csv.field_size_limit(MAX_CELL)
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    try:
        first = text.readline()
        if "\x00" in first:
            raise Unreadable("utf16", f"{name or 'The file'} contains NUL characters; save it as UTF-8 text.")
        delimiter = max(_DELIMITERS, key=lambda mark: (first.count(mark), mark == ","))
        text.seek(0)
        reader = csv.reader(text, delimiter=delimiter, strict=True)
        header = [cell.strip() for cell in next(reader, [])]
        if not any(header) or len(set(header)) < len(header):
            raise Unreadable("no_header", f"{name or 'The file'} needs a first line with a different name for every column.")
        for row in reader:
            where = f"line {reader.line_num}"
            if not any(row):
                continue
            if len(row) != len(header):
                yield Problem(where, "cell_count", f"{len(row)} cells where the header has {len(header)}", file=name)
                continue
            yield where, dict(zip(header, row, strict=True))
    except UnicodeDecodeError as error:
        raise Unreadable("not_utf8", f"{name or 'The file'} is not UTF-8 (byte {error.start}); save it as UTF-8.") from None
    except csv.Error as error:
        raise Unreadable("not_csv", f"{name or 'The file'} line {reader.line_num} is not valid CSV: {error}") from None
    finally:
        text.detach()


def parquet_missing() -> str | None:
    """Why Parquet cannot be read here, or None."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        return "Parquet needs the optional package pyarrow, which is not installed on this server."
    return None


def _parquet(stream: BinaryIO, name: str) -> Iterator[Item]:
    if missing := parquet_missing():
        raise Unreadable("unsupported_execution", missing)
    import pyarrow
    import pyarrow.parquet

    try:
        number = 0
        for batch in pyarrow.parquet.ParquetFile(stream).iter_batches(batch_size=1000):
            for row in batch.to_pylist():
                number += 1
                yield f"row {number}", row
    except pyarrow.ArrowInvalid as error:
        raise Unreadable("not_parquet", f"{name or 'The file'} is not a Parquet file: {str(error)[:200]}") from None
