"""One JSON array of objects, of any size, item by item: only a window of the document is ever held.

Items are held to what a line of JSON Lines is held to. What breaks the array itself (a missing comma, an end that never
comes) ends the reading, since nothing after it can be trusted. Places are lines and columns of the whole document.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from mlxplatform.datasets.imports.items import Plain, Problem, Unreadable, named
from mlxplatform.files import jsonl

#: Bytes read at once.
READ_BYTES = 1024 * 1024
_SPACE = " \t\r\n"

_item = json.JSONDecoder().raw_decode


def items(stream: BinaryIO, name: str) -> Iterator[Plain]:
    """The rows of a document whose first character, after space, is an opening bracket.

    Raises:
        Unreadable: it is no array from end to end.
    """
    window = _Window(stream, name)
    window.skip_space()
    window.take(1)
    number = 0
    while (mark := window.skip_space()) != "]":
        if number:
            if mark != ",":
                what = "cut off before the end of the array" if not mark else f"a comma or ']' belongs after item {number}"
                raise window.broken(what)
            window.take(1)
            if (mark := window.skip_space()) == "]":
                raise window.broken("a comma before ']'")
        number += 1
        line, column = window.place()
        yield _row(window.item(number), f"item {number}", line, column, name)
    window.take(1)
    if mark := window.skip_space():
        second = "a second value begins here; write one array of objects"
        raise window.broken(second if mark in "[{" else "text after the array")


def _row(raw: bytes, where: str, line: int, column: int, name: str) -> Plain:
    """An item's object, or what is wrong with it; it begins in that column of that line."""
    value = jsonl.value_of(raw, line)
    if isinstance(value, dict):
        return where, value
    if not isinstance(value, jsonl.BadLine):
        return Problem(where, "not_an_object", f"expected an object, got {jsonl.kind(value)}", file=name)
    # A column of the item's first line counts from where the item begins.
    shifted = value.column + column - 1 if value.column is not None and value.line == line else value.column
    return Problem(where, value.code, f"{value.reason} (line {value.line})", shifted, name)


class _Window:
    """The part of the document that is looked at, and where in the whole it begins."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream = stream
        self._name = name
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._held = ""
        self._at = 0
        #: Up to where in the window lines were counted, and the line and column of that place.
        self._told, self._line, self._column = 0, 1, 1
        self._ended = False
        self._read(READ_BYTES)
        self._at = self._told = int(self._held.startswith("\ufeff"))

    def place(self) -> tuple[int, int]:
        """Line and column, from 1, of what comes next."""
        held, at, told = self._held, self._at, self._told
        if lines := held.count("\n", told, at):
            self._line += lines
            self._column = at - held.rfind("\n", told, at)
        else:
            self._column += at - told
        self._told = at
        return self._line, self._column

    def skip_space(self) -> str:
        """The next character that is no space, not taken yet; "" at the end."""
        while True:
            held, at = self._held, self._at
            while at < len(held) and held[at] in _SPACE:
                at += 1
            self._at = at
            if at < len(held):
                return held[at]
            if self._ended:
                return ""
            self._read(READ_BYTES)

    def take(self, characters: int) -> None:
        self._at += characters

    def item(self, number: int) -> bytes:
        """The next value, as it is written.

        Raises:
            Unreadable: there is none, or a longer one than any row may be.
        """
        while True:
            try:
                _, end = _item(self._held, self._at)
            except json.JSONDecodeError:
                end = None
            except RecursionError:
                raise self._wrong() from None
            except ValueError:  # more digits than Python turns into a number
                raise self._wrong() from None
            # What reaches the window's end may go on behind it: a number does not say where it ends.
            if end is not None and (end < len(self._held) or self._ended):
                raw = self._held[self._at : end].encode()
                self._at = end
                return raw
            if self._ended:
                raise self._wrong()
            if len(self._held) - self._at > jsonl.MAX_LINE:
                problem = jsonl.explain(self._held[self._at :].encode())
                if "cut off" not in problem.reason:
                    raise self._wrong(problem)
                line, _ = self.place()
                most = jsonl.MAX_LINE >> 20
                raise Unreadable("too_large", f"{named(self._name)} line {line}: item {number} is longer than {most} MiB.")
            self._read(max(READ_BYTES, len(self._held) - self._at))

    def broken(self, what: str) -> Unreadable:
        line, column = self.place()
        return Unreadable("not_json", f"{named(self._name)} is not valid JSON: line {line}, column {column}: {what}.")

    def _wrong(self, found: Any = None) -> Unreadable:
        """What is wrong with the value that comes next."""
        found = found or jsonl.explain(self._held[self._at :].encode())
        line, column = self.place()
        at = "" if found.column is None else f", column {found.column + (column - 1 if found.line == 1 else 0)}"
        place = f"line {line + found.line - 1}{at}"
        return Unreadable("not_json", f"{named(self._name)} is not valid JSON: {place}: {found.reason}.")

    def _read(self, size: int) -> None:
        self._move_up()
        raw = self._stream.read(size)
        self._ended = not raw
        try:
            self._held += self._decoder.decode(raw, final=self._ended)
        except UnicodeDecodeError as error:
            self._held += error.object[: error.start].decode()
            self._at = len(self._held)
            what = f"not UTF-8 (byte 0x{error.object[error.start]:02x}); save the file as UTF-8"
            raise self.broken(what) from None

    def _move_up(self) -> None:
        """Let go of what was taken."""
        self.place()
        self._held, self._at, self._told = self._held[self._at :], 0, 0
