"""The texts inside a row, whatever its format: what is asked, what is answered, and all of it."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

_written = msgspec.json.Encoder(order="sorted").encode
_SPACE = re.compile(r"\s+")


def turns(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(role, text) pairs in order; fields of other formats count as user or assistant."""
    if isinstance(row.get("messages"), list):
        yield from _spoken(row["messages"])
        return
    for field, role in (
        ("prompt", "user"),
        ("completion", "assistant"),
        ("chosen", "assistant"),
        ("rejected", "rejected"),
        ("text", "assistant"),
    ):
        value = row.get(field)
        if isinstance(value, str):
            yield role, value
        elif isinstance(value, list):
            # Preferences may have turns in place of a text.
            yield from ((role if field == "rejected" else who, text) for who, text in _spoken(value))


def _spoken(messages: list[Any]) -> Iterator[tuple[str, str]]:
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            yield str(message.get("role", "")), content


def _calls(row: Mapping[str, Any]) -> Iterator[bytes]:
    """Every turn's tool calls, by what is called with what; their ids say nothing."""
    messages = row.get("messages")
    for message in messages if isinstance(messages, list) else ():
        for call in message.get("tool_calls") or () if isinstance(message, dict) else ():
            yield _written([call.get("function"), message.get("role")] if isinstance(call, dict) else call)


def exactly(row: Mapping[str, Any]) -> bytes:
    """Equal for rows that are the same in every character, whatever the order of their keys."""
    return hashlib.blake2b(_written(row), digest_size=16).digest()


def asked(row: Mapping[str, Any]) -> str:
    return "\n".join(text for role, text in turns(row) if role == "user")


def answered(row: Mapping[str, Any]) -> str:
    return "\n".join(text for role, text in turns(row) if role == "assistant")


def everything(row: Mapping[str, Any]) -> str:
    return "\n".join(text for _, text in turns(row))


def length(row: Mapping[str, Any]) -> int:
    return sum(len(text) for _, text in turns(row))


def normalised(text: str) -> str:
    """The same text for the purpose of comparing: compatibility forms, case and spacing are ignored."""
    return _SPACE.sub(" ", unicodedata.normalize("NFKC", text).casefold()).strip()


def digest(row: Mapping[str, Any]) -> bytes:
    """Equal for rows that say the same in the same roles, and call the same tools."""
    hashed = hashlib.blake2b(digest_size=16)
    for role, text in turns(row):
        hashed.update(f"{role}\x00{normalised(text)}\x01".encode("utf-8", "surrogatepass"))
    for called in _calls(row):
        hashed.update(b"\x02" + called)
    return hashed.digest()
