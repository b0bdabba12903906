"""Rows of one JSON document: an array of objects, one object, or an object that holds the array. May be pretty-printed.

As strict as JSON Lines: no NaN, no key twice, bounded nesting. Mistakes are named with line and column.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from mlxplatform.datasets import convert
from mlxplatform.datasets.imports.items import Item, Problem, Unreadable, named
from mlxplatform.files import jsonl

#: Largest document that is read: it has to fit into memory whole, unlike every other format.
MAX_ARRAY = 256 * 1024 * 1024

_encode = msgspec.json.Encoder().encode


def read(stream: BinaryIO, name: str) -> Iterator[Item]:
    """Raises Unreadable."""
    raw = stream.read(MAX_ARRAY + 1)
    if len(raw) > MAX_ARRAY:
        raise Unreadable("too_large", f"{named(name)} is one JSON document above {MAX_ARRAY >> 20} MiB; save it as JSON Lines.")
    raw = raw.removeprefix(jsonl.BOM)
    if not raw.strip():
        return
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if raw.lstrip()[:1] == b"{" and (read := _objects_in_lines(stream, name)) is not None:
            yield from read
            return
        problem = jsonl.explain(raw)
        raise Unreadable("not_json", f"{named(name)} is not valid JSON: {problem}.") from None
    repeated = {} if jsonl.keys_once(raw, _encode(value)) else _repeated(raw, name)
    if isinstance(value, dict):
        value = _rows_of(value, name)
    if not isinstance(value, list):
        raise Unreadable("not_rows", f"{named(name)} holds neither objects nor a list of them.")
    for number, row in enumerate(value, 1):
        where = f"item {number}"
        if not isinstance(row, dict):
            yield Problem(where, "not_an_object", f"expected an object, got {jsonl.kind(row)}", file=name)
        elif number in repeated:
            twice = repeated[number]
            why = f"the key {twice.key!r} occurs twice in one object (line {twice.line})"
            yield Problem(where, "duplicate_key", why, twice.column, name)
        elif jsonl.depth(row) > jsonl.MAX_DEPTH:
            yield Problem(where, "too_deep", f"nested deeper than {jsonl.MAX_DEPTH} levels", file=name)
        else:
            yield where, row


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
        keys = ", ".join(list(lists)[:8])
        raise Unreadable(
            "several_lists",
            f"{named(name)} holds several lists of rows ({keys}). Save each in a file of its own, or as one array.",
        )
    if lists:
        return next(iter(lists.values()))
    return [] if any(entry == [] for entry in document.values()) else [document]


def _repeated(raw: bytes, name: str) -> dict[int, jsonl.Repeated]:
    """Item number → a key that it holds twice, with its place in the document. Another document is refused as a whole."""
    twice = jsonl.repeated_key(raw)
    if twice is None:
        return {}
    if raw.lstrip()[:1] != b"[":
        raise Unreadable(
            "duplicate_key",
            f"{named(name)} line {twice.line}, column {twice.column} has the key {twice.key!r} twice in one object.",
        )
    text = raw.decode()
    decoder, at, number = json.JSONDecoder(), text.index("[") + 1, 0
    found: dict[int, jsonl.Repeated] = {}
    while True:
        while text[at] in " \t\r\n,":
            at += 1
        if text[at] == "]":
            return found
        number += 1
        start = at
        _, at = decoder.raw_decode(text, start)
        if (twice := jsonl.repeated_key(text[start:at].encode())) is not None:
            line, column = text.count("\n", 0, start) + twice.line, twice.column
            if twice.line == 1:
                column += start - text.rfind("\n", 0, start) - 1
            found[number] = jsonl.Repeated(twice.key, line, column)


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
