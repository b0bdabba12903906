"""Rows of one JSON document: an array of objects, one object, or an object that holds the array. May be pretty-printed.

As strict as JSON Lines: no NaN, no key twice, bounded nesting. Mistakes are named with line and column.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from mlxplatform.datasets import convert
from mlxplatform.datasets.imports import documents
from mlxplatform.datasets.imports.items import Item, Problem, Unreadable, named
from mlxplatform.files import jsonl

#: Largest document that is an object: it has to fit into memory whole, unlike every other format.
MAX_DOCUMENT = 64 * 1024 * 1024
#: Bytes looked at to see whether it is an array.
PEEKED = 4096


def read(stream: BinaryIO, name: str) -> Iterator[Item]:
    """Raises Unreadable."""
    if _is_array(stream):
        yield from documents.items(stream, name)
        return
    raw = stream.read(MAX_DOCUMENT + 1)
    if len(raw) > MAX_DOCUMENT:
        if (lines := _objects_in_lines(stream, name)) is not None:
            yield from lines
            return
        most = MAX_DOCUMENT >> 20
        raise Unreadable("too_large", f"{named(name)} is one JSON object above {most} MiB; save it as JSON Lines or as an array.")
    raw = raw.removeprefix(jsonl.BOM)
    if not raw.strip():
        return
    document = jsonl.value_of(raw)
    if isinstance(document, jsonl.BadLine):
        if raw.lstrip()[:1] == b"{" and (lines := _objects_in_lines(stream, name)) is not None:
            yield from lines
            return
        raise Unreadable(document.code, f"{named(name)} is not valid JSON: {document}.")
    if not isinstance(document, dict):
        raise Unreadable("not_rows", f"{named(name)} holds neither objects nor a list of them.")
    for number, row in enumerate(_rows_of(document, name), 1):
        where = f"item {number}"
        if isinstance(row, dict):
            yield where, row
        else:
            yield Problem(where, "not_an_object", f"expected an object, got {jsonl.kind(row)}", file=name)


def _is_array(stream: BinaryIO) -> bool:
    """Whether the document begins as an array. Space beyond what is looked at is no array's business."""
    start = stream.read(PEEKED)
    stream.seek(0)
    return start.removeprefix(jsonl.BOM).lstrip()[:1] == b"["


def _rows_of(document: dict[str, Any], name: str) -> list[Any]:
    """The rows of a document that is an object: its only list of objects, unless the object is a row itself.

    Raises:
        Unreadable: it has several such lists; taking one would lose the others.
    """
    if convert.form_of(document) is not None:
        return [document]
    lists = {
        key: entry
        for key, entry in document.items()
        if isinstance(entry, list) and entry and all(isinstance(row, dict) for row in entry)
    }
    if len(lists) > 1:
        keys = ", ".join(map(convert.name_of, list(lists)[:8]))
        raise Unreadable(
            "several_lists",
            f"{named(name)} holds several lists of rows ({keys}). Save each in a file of its own, or as one array.",
        )
    if lists:
        return next(iter(lists.values()))
    return [] if any(entry == [] for entry in document.values()) else [document]


def _objects_in_lines(stream: BinaryIO, name: str) -> Iterator[Item] | None:
    """The rows of a .json file that really is JSON Lines: its first line is an object by itself."""
    stream.seek(0)
    first = next(jsonl.lines(stream), None)
    if not isinstance(first, jsonl.Line) or isinstance(jsonl.parse(first), jsonl.BadLine):
        return None
    return _lines(stream, name)


def _lines(stream: BinaryIO, name: str) -> Iterator[Item]:
    stream.seek(0)
    for item in jsonl.rows(stream):
        if isinstance(item, jsonl.BadLine):
            yield Problem(f"line {item.line}", item.code, item.reason, item.column, name)
        else:
            yield f"line {item[0].number}", item[1]
