"""Rows of CSV and TSV as spreadsheets and people write them: any usual delimiter, quoted line ends, Excel's "sep=" line.

Read line by line, so that an error has its line; one that breaks the quoting ends the reading, since nothing after it
can be trusted. A row's place is the line it begins on.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from mlxplatform.datasets import convert
from mlxplatform.datasets.imports.items import Plain, Problem, Unreadable, named
from mlxplatform.files import jsonl

#: Longest cell, characters, and longest physical line, bytes.
MAX_CELL = MAX_LINE = 16 * 1024 * 1024
DELIMITERS = ",;\t|"
#: Columns whose cells are lists written as JSON text, as exports of conversations have them.
_JSON_COLUMNS = frozenset({"messages", "conversations", "conversation", "chat_rounds", "tools"})
_SEP = re.compile(r"sep=(.)\s*", re.IGNORECASE)
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
#: What the csv module says, and what a person can do about it.
_SENTENCES = (
    ("unexpected end of data", "a quoted cell begins here and is never closed"),
    ("expected after", "there is text after a closing quote; a quote inside a quoted cell is written twice"),
    ("field larger", f"a cell is longer than {MAX_CELL // 1024 // 1024} Mi characters; is a quote missing?"),
)


def read(stream: BinaryIO, name: str) -> Iterator[Plain]:
    """Raises Unreadable."""
    csv.field_size_limit(MAX_CELL)
    lines = _lines(stream, name)
    first, skipped = _first(lines)
    delimiter = ""
    if asked := _SEP.fullmatch(first):
        delimiter = asked.group(1)
        first, more = _first(lines)
        skipped += 1 + more
    delimiter = delimiter or delimiter_of(first)
    reader = csv.reader(_chain(first, lines), delimiter=delimiter, strict=True)
    begun = 1
    try:
        header = [cell.strip() for cell in next(reader, [])]
        if not header:
            return
        _check_header(header, named(name))
        as_json = _JSON_COLUMNS.intersection(header)
        begun = reader.line_num + 1
        for row in reader:
            where, begun = f"line {begun + skipped}", reader.line_num + 1
            if not any(row):
                continue
            if len(row) != len(header):
                why = f"{len(row)} cells where the header has {len(header)} ({', '.join(header)[:200]})"
                yield Problem(where, "cell_count", why, file=name)
                continue
            values: dict[str, Any] = dict(zip(header, row, strict=True))
            problem = _decoded(values, as_json, where, name) if as_json else None
            yield problem or (where, values)
    except csv.Error as error:
        sentence = next((said for words, said in _SENTENCES if words in str(error)), str(error))
        raise Unreadable("not_csv", f"{named(name)} line {begun + skipped} is not valid CSV: {sentence}.") from None


def _first(lines: Iterator[str]) -> tuple[str, int]:
    """The first line that is not blank, and how many blank ones stand before it."""
    for blank, line in enumerate(lines):
        if line.strip():
            return line, blank
    return "", 0


def _check_header(header: list[str], file: str) -> None:
    if not any(header):
        raise Unreadable("no_header", f"{file} needs a first line with a name for every column; its first line is empty.")
    for column, cell in enumerate(header, 1):
        before = header.index(cell) + 1
        if before < column:
            what = (
                f"columns {before} and {column} are both called {convert.name_of(cell)!r}"
                if cell
                else f"columns {before} and {column} have no name"
            )
            raise Unreadable("no_header", f"{file} needs a first line with a different name for every column; {what}.")


def _decoded(values: dict[str, Any], columns: frozenset[str], where: str, name: str) -> Problem | None:
    """Turns JSON text in the columns that hold lists into what it says, or what is wrong with it."""
    for column in columns:
        raw = values[column].strip()
        if not raw:
            del values[column]  # a cell without anything says nothing
        elif raw.startswith(("[", "{")):
            read = jsonl.value_of(raw.encode())
            if isinstance(read, jsonl.BadLine):
                why = f"is not JSON: {read.reason}" if read.code == "not_json" else read.reason
                return Problem(where, read.code, why, None, name, column)
            values[column] = read
    return None


def delimiter_of(header: str) -> str:
    """The delimiter that the header holds most of outside of quotes."""
    bare = _QUOTED.sub("", header)
    return max(DELIMITERS, key=lambda mark: (bare.count(mark), mark == ","))


def _chain(first: str, lines: Iterator[str]) -> Iterator[str]:
    if first:
        yield first
    yield from lines


def _lines(stream: BinaryIO, name: str) -> Iterator[str]:
    """Decoded physical lines with their ends; a bare carriage return (old Macs) ends one too.

    Raises:
        Unreadable: a line that is not UTF-8, or longer than any cell may be.
    """
    number = 0
    while raw := stream.readline(MAX_LINE + 1):
        if number == 0:
            raw = raw.removeprefix(jsonl.BOM)
        if len(raw) > MAX_LINE:
            raise Unreadable("not_csv", f"{named(name)} line {number + 1} is longer than {MAX_LINE >> 20} MiB.")
        for part in _ended(raw):
            number += 1
            if b"\x00" in part:
                where = f"{named(name)} line {number}, column {part.index(0) + 1}"
                raise Unreadable("nul", f"{where} contains a NUL byte. Save the file as UTF-8 text.")
            try:
                yield part.decode()
            except UnicodeDecodeError as error:
                column = len(part[: error.start].decode(errors="replace")) + 1
                where = f"{named(name)} line {number}, column {column}"
                why = f"is not UTF-8 (byte 0x{part[error.start]:02x}). Save the file as UTF-8; Excel calls it CSV UTF-8."
                raise Unreadable("not_utf8", f"{where} {why}") from None


def _ended(raw: bytes) -> list[bytes]:
    if b"\r" not in raw.rstrip(b"\r\n"):
        return [raw]
    return [part for part in re.split(rb"(?<=\r)(?!\n)", raw) if part]
