"""The texts inside a row, whatever its format: what is asked, what is answered, and all of it."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

_SPACE = re.compile(r"\s+")


def turns(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(role, text) pairs in order; fields of other formats count as user or assistant."""
    if isinstance(row.get("messages"), list):
        for message in row["messages"]:
            content = message.get("content") if isinstance(message, dict) else None
            if isinstance(content, str):
                yield str(message.get("role", "")), content
        return
    for field, role in (
        ("prompt", "user"),
        ("completion", "assistant"),
        ("chosen", "assistant"),
        ("rejected", "rejected"),
        ("text", "assistant"),
    ):
        if isinstance(row.get(field), str):
            yield role, row[field]


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
    """Equal for rows that say the same in the same roles."""
    hashed = hashlib.blake2b(digest_size=16)
    for role, text in turns(row):
        hashed.update(f"{role}\x00{normalised(text)}\x01".encode("utf-8", "surrogatepass"))
    return hashed.digest()
