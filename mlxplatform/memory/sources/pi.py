"""Sessions of pi-type coding agents: JSON lines with one ``session`` line and a tree of ``message`` lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from mlxplatform.memory.sources import Item, Skipped, Turn, imported, instant, parts_text, text_of, unpacked, word

_FILE = re.compile(r"\.jsonl$")


def read(raw: bytes, name: str) -> Iterator[Item]:
    for file_name, content in unpacked(raw, name, _FILE):
        short = file_name.rsplit("/", 1)[-1]
        session: list[dict[str, Any]] = []
        for place, line in enumerate(content.splitlines(), start=1):
            if not line.strip():
                continue
            try:
                entry = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                yield Skipped(f"{short}:{place}", "not valid JSON")
                continue
            if not isinstance(entry, dict):
                continue
            if entry.get("type") == "session" and session:
                yield _session(session, short)
                session = []
            session.append(entry)
        if session:
            yield _session(session, short)


def _session(entries: list[dict[str, Any]], where: str) -> Item:
    header = entries[0] if entries[0].get("type") == "session" else {}
    session_id = text_of(header.get("id"))
    if not session_id:
        return Skipped(where, "has no session line with an id")
    messages = [entry for entry in entries if entry.get("type") == "message" and isinstance(entry.get("message"), dict)]
    names = [entry.get("name") for entry in entries if entry.get("type") == "session_info"]
    turns = []
    for entry in _branch(entries, messages):
        role = word(entry["message"].get("role"))
        if role in {"user", "assistant"}:
            turns.append(Turn(role, parts_text(entry["message"].get("content"))))
    times = [moment for entry in (header, *messages) if (moment := instant(entry.get("timestamp")))]
    return imported(session_id, next((name for name in reversed(names) if name), ""), max(times, default=None), turns)


def _branch(entries: list[dict[str, Any]], messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages from the newest one up to the root; all of them when the session keeps no tree."""
    if not messages or not all(word(entry.get("id")) for entry in messages):
        return messages
    by_id = {entry["id"]: entry for entry in entries if isinstance(entry.get("id"), str)}
    found: list[dict[str, Any]] = []
    seen: set[str] = set()
    node: dict[str, Any] | None = messages[-1]
    while node is not None and node["id"] not in seen:
        seen.add(node["id"])
        if node.get("type") == "message" and isinstance(node.get("message"), dict):
            found.append(node)
        node = by_id.get(word(node.get("parentId")))
    return found[::-1]
