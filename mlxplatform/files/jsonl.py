"""Reading JSON Lines as people really have it, one line at a time, with errors a person can act on.

Lines end at a line feed only (CRLF included; a bare carriage return, which JSON strings cannot contain, ends one
too): characters such as U+2028 are content. Numbers of lines are physical, blank ones counted. Parsing is strict:
UTF-8, one object, no NaN, no lone surrogates, no key twice. Knows bytes and JSON; nothing of what a row means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec

BOM = b"\xef\xbb\xbf"
#: Longest line read, bytes. A longer one is reported and skipped without being held in memory.
MAX_LINE = 16 * 1024 * 1024
#: Deepest nesting accepted in a row.
MAX_DEPTH = 64
#: Bytes read at once while skipping the rest of an overlong line.
_SKIP = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Line:
    """One non-blank line: physical number from 1, byte offset of its start in the file, content without its end."""

    number: int
    start: int
    raw: bytes


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that cannot be used; ``column`` counts characters from 1. ``code`` is stable, ``reason`` a sentence."""

    line: int
    column: int | None
    code: str
    reason: str

    def __str__(self) -> str:
        where = f"line {self.line}" if self.column is None else f"line {self.line}, column {self.column}"
        return f"{where}: {self.reason}"


class NotLines(Exception):
    """The file as a whole is something else than JSON Lines. ``code``: array, utf16, pretty."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


_decode = msgspec.json.Decoder().decode
_KEY = re.compile(rb'"\s*:')
_CONSTANT = re.compile(rb"(?<![\w\"])(-?Infinity|NaN)(?![\w\"])")


def lines(stream: BinaryIO, *, max_line: int = MAX_LINE) -> Iterator[Line | BadLine]:
    """Every non-blank line in order.

    Raises:
        NotLines: the file begins as UTF-16 or UTF-32.
    """
    number, start = 0, 0
    while True:
        raw = stream.readline(max_line + 1)
        if not raw:
            return
        number += 1
        size = len(raw)
        if size > max_line and not raw.endswith(b"\n"):
            size += _skip(stream)
            yield BadLine(number, None, "line_too_long", f"longer than {max_line // (1024 * 1024) or 1} MiB")
            start += size
            continue
        offset = start
        if number == 1:
            if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise NotLines("utf16", "The file is encoded as UTF-16. Save it as UTF-8.")
            if raw.startswith(BOM):
                raw, offset = raw[len(BOM) :], offset + len(BOM)
        content = raw.rstrip(b"\r\n")
        if b"\r" in content:
            for piece in content.split(b"\r"):
                if piece.strip():
                    yield Line(number, offset, piece)
                offset += len(piece) + 1
                number += 1
            number -= 1
        elif content.strip():
            yield Line(number, offset, content)
        start += size


def _skip(stream: BinaryIO) -> int:
    """Read to the end of the line and drop it; how many bytes that was."""
    dropped = 0
    while True:
        more = stream.readline(_SKIP)
        dropped += len(more)
        if not more or more.endswith(b"\n"):
            return dropped


def parse(line: Line) -> dict[str, Any] | BadLine:
    """The line's object, or why there is none."""
    raw = line.raw
    if b"\x00" in raw:
        return BadLine(line.number, raw.index(b"\x00") + 1, "nul", "contains a NUL byte")
    try:
        value = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _explain(line)
    if not isinstance(value, dict):
        return BadLine(line.number, 1, "not_an_object", f"expected an object, got {_kind(value)}")
    keys, depth = _shape(value)
    if depth > MAX_DEPTH:
        return BadLine(line.number, None, "too_deep", f"nested deeper than {MAX_DEPTH} levels")
    # Every key shows as a quote and a colon; as many in the text as in the value means that none occurs twice.
    spaced = b" :" in raw or b"\t:" in raw
    if (raw.count(b'":') if not spaced else len(_KEY.findall(raw))) != keys:
        twice = _repeated_key(raw)
        if twice is not None:
            return BadLine(line.number, None, "duplicate_key", f"the key {twice!r} occurs twice in one object")
    return value


def rows(stream: BinaryIO, *, max_line: int = MAX_LINE) -> Iterator[tuple[Line, dict[str, Any]] | BadLine]:
    """Parsed lines and bad ones, in order.

    Raises:
        NotLines: the file is one JSON array, or one object over several lines, or no UTF-8.
    """
    first = True
    for line in lines(stream, max_line=max_line):
        if isinstance(line, BadLine):
            yield line
            continue
        if first:
            first = False
            _check_first(line)
        value = parse(line)
        yield value if isinstance(value, BadLine) else (line, value)


def _check_first(line: Line) -> None:
    text = line.raw.strip()
    if text.startswith(b"["):
        raise NotLines("array", "The file is one JSON array, not JSON Lines. Put each object on a line of its own.")
    if text == b"{":
        raise NotLines("pretty", "The file is JSON spread over several lines, not JSON Lines. Put each object on one line.")


def _shape(value: Any) -> tuple[int, int]:
    """(keys in all objects, depth)."""
    keys, depth = 0, 0
    level = [value]
    while level:
        depth += 1
        below: list[Any] = []
        for item in level:
            if type(item) is dict:
                keys += len(item)
                item = item.values()
            below += [child for child in item if type(child) is dict or type(child) is list]
        level = below
    return keys, depth


def _repeated_key(raw: bytes) -> str | None:
    found: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: set[str] = set()
        for key, _ in items:
            if key in seen:
                found.append(key)
            seen.add(key)
        return dict(items)

    json.loads(raw, object_pairs_hook=pairs)
    return found[0] if found else None


def _explain(line: Line) -> BadLine:
    """A sentence for a line that does not parse, with the column where it goes wrong."""
    try:
        text = line.raw.decode()
    except UnicodeDecodeError as error:
        column = len(line.raw[: error.start].decode(errors="replace")) + 1
        byte = line.raw[error.start]
        return BadLine(line.number, column, "not_utf8", f"not UTF-8 (byte 0x{byte:02x}); save the file as UTF-8")
    constant = _CONSTANT.search(line.raw)
    try:
        json.loads(text)
    except RecursionError:
        return BadLine(line.number, None, "too_deep", f"nested deeper than {MAX_DEPTH} levels")
    except json.JSONDecodeError as error:
        return BadLine(line.number, error.pos + 1, "not_json", _reason(text, error))
    except ValueError as error:
        return BadLine(line.number, None, "not_json", str(error))
    if constant:
        name = constant.group(1).decode()
        return BadLine(line.number, constant.start() + 1, "not_json", f"{name} is not JSON; use null or a number")
    return BadLine(line.number, None, "not_json", "contains half of a surrogate pair")


def _reason(text: str, error: json.JSONDecodeError) -> str:
    """What is probably meant: the mistakes people make, named."""
    at = text[error.pos :].lstrip()
    before = text[: error.pos].rstrip()
    whole = text.strip()
    if error.msg == "Extra data":
        if at.startswith(","):
            return "ends with a comma; lines are separated by line ends only"
        return "two values on one line; put each object on its own line" if at.startswith(("{", "[")) else "text after the object"
    if whole.startswith(("//", "#", "/*")):
        return "a comment; JSON Lines has none"
    if at.startswith("'") or whole.startswith("{'"):
        return "single quotes; JSON strings need double quotes"
    if before.endswith(",") and at[:1] in ("}", "]"):
        return f"a comma before {at[0]!r}"
    if not at or error.msg.startswith("Unterminated string"):
        return "cut off before the end of the object"
    if error.msg.startswith("Invalid control character"):
        return "an unescaped control character inside a string"
    return error.msg[:1].lower() + error.msg[1:]


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true/false"
    return {str: "a string", list: "a list", int: "a number", float: "a number"}.get(type(value), "something else")
