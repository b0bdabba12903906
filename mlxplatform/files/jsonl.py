"""Reading JSON Lines as people really have it, one line at a time, with errors a person can act on.

Lines end at a line feed only (CRLF included; a bare carriage return, which JSON strings cannot contain, ends one
too): characters such as U+2028 are content. A byte order mark may begin any line, as where files were put together.
Numbers of lines are physical, blank ones counted. Parsing is strict:
UTF-8, one object, no NaN, no lone surrogates, no key twice. Knows bytes and JSON; nothing of what a row means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import msgspec

BOM = b"\xef\xbb\xbf"
#: All that JSON takes for space.
_SPACE = " \t\r\n"
#: Longest line read, bytes. A longer one is reported and skipped without being held in memory.
MAX_LINE = 16 * 1024 * 1024
#: Deepest nesting accepted in a row.
MAX_DEPTH = 64
#: Characters of a key in a sentence.
_KEY_CHARS = 60
#: Bytes read at once while skipping the rest of an overlong line.
_SKIP = 1024 * 1024


class Line(NamedTuple):
    """One non-blank line: physical number from 1, byte offset of its start in the file, content without its end.

    A tuple, since a frozen dataclass takes three times as long to make and files have millions of lines.
    """

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
_encode = msgspec.json.Encoder().encode
_SPACED = re.compile(rb'"[ \t]+:')
_HALF = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_HUGE = re.compile(r"(?<![\w.\"-])-?\d[\d.]*[eE]\+?\d{3,}")
_LONG = re.compile(r"(?<![\w\".])-?\d{1000,}")
#: Strings and the marks around them, of a valid document.
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:]')
#: What Python writes where JSON has null, true and false.
_PYTHON = {"None": "null", "True": "true", "False": "false"}
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
        if number == 1 and raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise NotLines("utf16", "The file is encoded as UTF-16. Save it as UTF-8.")
        while raw.startswith(BOM):
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
    value = value_of(line.raw, line.number)
    if isinstance(value, dict | BadLine):
        return value
    return BadLine(line.number, 1, "not_an_object", f"expected an object, got {kind(value)}")


def value_of(raw: bytes, number: int = 1) -> Any:
    """What some bytes say, of whatever type and as strictly as a line is read, or a BadLine; ``number`` is the first line's."""
    if b"\x00" in raw:
        return BadLine(number, raw.index(b"\x00") + 1, "nul", "contains a NUL byte")
    try:
        value = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _moved(explain(raw), number)
    if not isinstance(value, dict | list):
        return value
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and depth(value) > MAX_DEPTH:
        return _moved(_too_deep(raw.decode()), number)
    if not keys_once(raw, _encode(value)) and (twice := repeated_key(raw)) is not None:
        return BadLine(number + twice.line - 1, twice.column, "duplicate_key", twice.reason)
    return value


def keys_once(raw: bytes, again: bytes) -> bool:
    """Whether certainly no key occurs twice in an object; False means: look closely.

    ``again`` is the decoded value encoded anew, compactly. Every key shows as a quote and a colon, and so does the
    same sequence inside a string, in both texts alike; a key that was there twice is there once in ``again``. Spelling
    either character as an escape, or space before the colon, would upset the count.
    """
    if raw.count(b'":') != again.count(b'":'):
        return False
    if b"\\" in raw and (b"\\u0022" in raw or b"\\u003" in raw):
        return False
    return (b" :" not in raw and b"\t:" not in raw) or _SPACED.search(raw) is None


def rows(
    stream: BinaryIO, *, max_line: int = MAX_LINE, quick: Callable[[bytes], Any] | None = None
) -> Iterator[tuple[Line, Any] | BadLine]:
    """Parsed lines (objects) and bad ones, in order.

    ``quick`` may take a line before it is parsed here and give something else for it; None leaves it to the parser.

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
        value = quick(line.raw) if quick is not None else None
        if value is None:
            value = parse(line)
        yield value if isinstance(value, BadLine) else (line, value)


def _check_first(line: Line) -> None:
    text = line.raw.strip()
    if text.startswith(b"["):
        raise NotLines("array", "The file is one JSON array, not JSON Lines. Put each object on a line of its own.")
    if text == b"{":
        raise NotLines("pretty", "The file is JSON spread over several lines, not JSON Lines. Put each object on one line.")


def depth(value: Any) -> int:
    """Levels of objects and lists."""
    depth = 0
    level = [value]
    while level:
        depth += 1
        below: list[Any] = []
        for item in level:
            inside = item.values() if type(item) is dict else item
            below += [child for child in inside if type(child) is dict or type(child) is list]
        level = below
    return depth


class Repeated(NamedTuple):
    """A key that its object had before; line (from 1) and column (in characters, from 1) of its second place."""

    key: str
    line: int
    column: int

    @property
    def reason(self) -> str:
        key = self.key if len(self.key) <= _KEY_CHARS else f"{self.key[:_KEY_CHARS]}…"
        return f"the key {key!r} occurs twice in one object"


def repeated_key(raw: bytes) -> Repeated | None:
    """The first key that occurs twice in one object of a valid document, if any."""
    any_twice = False

    def pairs(items: list[tuple[str, Any]]) -> None:
        nonlocal any_twice
        any_twice = any_twice or len({key for key, _ in items}) < len(items)

    json.loads(raw, object_pairs_hook=pairs)
    return _second_place(raw.decode()) if any_twice else None


def _second_place(text: str) -> Repeated:
    """Where the first repeated key of a valid document stands: slow, for the few documents that have one."""
    open_keys: list[set[str]] = []
    last, last_at = "", 0
    for token in _TOKEN.finditer(text):
        mark = token.group()
        if mark in "{[":
            open_keys.append(set())
        elif mark in "}]":
            open_keys.pop()
        elif mark != ":":
            last, last_at = mark, token.start()
        else:
            key = json.loads(last, strict=False)
            if key in open_keys[-1]:
                return Repeated(key, text.count("\n", 0, last_at) + 1, last_at - text.rfind("\n", 0, last_at))
            open_keys[-1].add(key)
    raise AssertionError("the document repeats no key")


def _too_deep(text: str) -> BadLine:
    """Names the first bracket beyond the deepest level."""
    depth = 0
    for token in _TOKEN.finditer(text):
        depth += (token.group() in "{[") - (token.group() in "}]")
        if depth > MAX_DEPTH:
            return _at(text, token.start(), "too_deep", f"nested deeper than {MAX_DEPTH} levels")
    return BadLine(1, None, "too_deep", f"nested deeper than {MAX_DEPTH} levels")


def _moved(found: BadLine, number: int) -> BadLine:
    """The same, where the first line is the file's ``number``."""
    return BadLine(number + found.line - 1, found.column, found.code, found.reason)


def explain(raw: bytes) -> BadLine:
    """Why some bytes are no JSON: a sentence with the line (from 1) and the column where it goes wrong."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode(errors="replace")
        return _at(before, len(before), "not_utf8", f"not UTF-8 (byte 0x{raw[error.start]:02x}); save the file as UTF-8")
    constant = _CONSTANT.search(raw)
    try:
        json.loads(text)
    except RecursionError:
        return _too_deep(text)
    except json.JSONDecodeError as error:
        return _at(text, error.pos, "not_json", _reason(text, error))
    except ValueError:  # more digits than Python turns into a number
        long = _LONG.search(text)
        return _at(text, long.start() if long else 0, "not_json", "a number of thousands of digits")
    if constant:
        before = raw[: constant.start()].decode(errors="replace")
        return _at(before, len(before), "not_json", f"{constant.group(1).decode()} is not JSON; use null or a number")
    if (number := _HUGE.search(text)) is not None:
        return _at(text, number.start(), "not_json", "a number beyond what a computer's floating point holds")
    half = _HALF.search(text)
    return _at(
        text, half.start() if half else 0, "not_json", "contains half of a surrogate pair (a \\u escape without its partner)"
    )


def _at(text: str, position: int, code: str, reason: str) -> BadLine:
    line_start = text.rfind("\n", 0, position) + 1
    return BadLine(text.count("\n", 0, position) + 1, position - line_start + 1, code, reason)


def _reason(text: str, error: json.JSONDecodeError) -> str:
    """What is probably meant: the mistakes people make, named."""
    at = text[error.pos :].lstrip(_SPACE)
    before = text[: error.pos].rstrip(_SPACE)
    whole = text.strip(_SPACE)
    if error.msg == "Extra data":
        return _after_the_object(text[: error.pos], at)
    if whole.startswith(("//", "#", "/*")):
        return "a comment; JSON Lines has none"
    if at.startswith("'") or whole.startswith("{'"):
        return "single quotes; JSON strings need double quotes"
    if before.endswith(",") and at[:1] in ("}", "]"):
        return f"a comma before {at[0]!r}"
    if error.msg.startswith("Illegal trailing comma"):  # as Python 3.13 and later say it
        return f"a comma before {at[1:].lstrip()[:1]!r}"
    if at and not at[0].isprintable() and not error.msg.startswith("Invalid control character"):
        return f"an invisible character (U+{ord(at[0]):04X}); remove it"
    if (word := next((word for word in _PYTHON if at.startswith(word)), "")) != "":
        return f"{word} is Python; JSON has {_PYTHON[word]}"
    if error.pos == 0 and at[:1] not in ("{", "[", ""):
        return f"no JSON object begins here but {at[:20]!r}; for a table, say that the format is csv"
    if not at or error.msg.startswith("Unterminated string"):
        return "cut off before the end of the object; each object belongs on one line"
    if error.msg.startswith("Invalid control character"):
        return "an unescaped control character inside a string"
    return error.msg[:1].lower() + error.msg[1:]


def _after_the_object(before: str, at: str) -> str:
    """What it is that follows a whole value."""
    if at.startswith(","):
        return "ends with a comma; lines are separated by line ends only"
    if not at.startswith(("{", "[")):
        return "text after the object"
    if "\n" in before:
        return "a second value begins here; write one array of objects, or each object on a line of its own"
    return "two values on one line; put each object on its own line"


def kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true/false"
    return {str: "a string", list: "a list", int: "a number", float: "a number"}.get(type(value), "something else")
