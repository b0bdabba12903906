"""Conversations as other programs export them, read into one shape.

A reader turns bytes into :class:`Imported` and :class:`Skipped` items and knows nothing of vaults or SQL.
Only what people and models said is kept: tool output, system texts and hidden turns are not memory.
"""

from __future__ import annotations

import datetime as dt
import io
import math
import re
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

#: Longest text of one turn kept, characters: a pasted log is not a memory.
TURN_LIMIT = 200_000
#: Most bytes an archive may unpack to.
UNPACKED_LIMIT = 2 * 1024**3
#: Times its own size an archive may unpack to, once that is a lot: chats shrink to a tenth, hardly ever to a fiftieth.
RATIO_LIMIT, A_LOT = 200, 64 * 1024**2


class Unreadable(ValueError):
    """The file is not what its format says; the message tells a person what is wrong."""


@dataclass(frozen=True)
class Turn:
    """``role`` is user, assistant, or note for text without speakers."""

    role: str
    text: str


@dataclass(frozen=True)
class Imported:
    external_id: str
    title: str
    updated_at: dt.datetime | None
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Skipped:
    """An item that could not be read, and why."""

    where: str
    reason: str


Item = Imported | Skipped
_TEXT_PARTS = {"text", "input_text", "output_text"}
Reader = Callable[[bytes, str], Iterator[Item]]


def clean(text: str) -> str:
    """Text that every database and every file takes: composed, no NUL, no half surrogates."""
    text = text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")
    return unicodedata.normalize("NFC", text).strip()[:TURN_LIMIT]


def instant(value: Any) -> dt.datetime | None:
    """A time from seconds, milliseconds or ISO text; None when there is none to be had."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            seconds = value / 1000 if value > 1e11 else value
            return dt.datetime.fromtimestamp(seconds, dt.UTC) if math.isfinite(seconds) and seconds > 0 else None
        if isinstance(value, str) and value:
            if re.fullmatch(r"\d+(\.\d+)?", value):
                return instant(float(value))
            parsed = dt.datetime.fromisoformat(value)
            return parsed if parsed.tzinfo else parsed.replace(tzinfo=dt.UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return None


def word(value: Any) -> str:
    """A value that should be a short text, or '' when it is something else: exports hold any shape of JSON."""
    return value if isinstance(value, str) else ""


def parts_text(content: Any) -> str:
    """The text of a message content: a string, or the text parts of a list."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        pieces = [part if isinstance(part, str) else part.get("text", "") for part in content if _is_text(part)]
        return "\n".join(piece for piece in pieces if isinstance(piece, str) and piece)
    return ""


def _is_text(part: Any) -> bool:
    return isinstance(part, str) or (isinstance(part, dict) and word(part.get("type", "text")) in _TEXT_PARTS)


def text_of(id_: Any, fallback: str = "") -> str:
    return (
        clean(id_)[:200] if isinstance(id_, str) else str(id_) if isinstance(id_, int) and not isinstance(id_, bool) else fallback
    )


def imported(external_id: str, title: Any, updated_at: dt.datetime | None, turns: list[Turn]) -> Imported:
    kept = tuple(Turn(turn.role, text) for turn in turns if (text := clean(turn.text)))
    name = clean(title)[:300] if isinstance(title, str) else ""
    return Imported(external_id, name, updated_at, kept)


def load_json(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Unreadable("the file is not valid JSON") from None


def unpacked(raw: bytes, name: str, wanted: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    """The file itself, or the files of a zip archive whose names match, in name order."""
    if not raw.startswith(b"PK\x03\x04"):
        yield name, raw
        return
    try:
        archive = zipfile.ZipFile(io.BytesIO(raw))
        members = sorted(
            (m for m in archive.infolist() if not m.is_dir() and wanted.search(m.filename)), key=lambda m: m.filename
        )
        total = sum(member.file_size for member in members)
        if total > UNPACKED_LIMIT:
            raise Unreadable(f"the archive unpacks to more than {UNPACKED_LIMIT // 1024**3} GiB")
        if total > A_LOT and total > RATIO_LIMIT * len(raw):
            raise Unreadable(f"the archive unpacks to more than {RATIO_LIMIT} times its size, as no export does")
        for member in members:
            yield member.filename, archive.read(member)
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, OSError):
        raise Unreadable("the archive is damaged or encrypted") from None
    if not members:
        raise Unreadable("the archive holds no file of this format")
