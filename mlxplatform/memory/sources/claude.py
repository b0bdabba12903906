"""Claude's data export: ``conversations.json``, alone or in its zip."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from mlxplatform.memory.sources import (
    Item,
    Skipped,
    Turn,
    Unreadable,
    imported,
    instant,
    load_json,
    parts_text,
    text_of,
    unpacked,
    word,
)

_FILE = re.compile(r"(^|/)conversations[^/]*\.json$")
_ROLES = {"human": "user", "user": "user", "assistant": "assistant"}


def read(raw: bytes, name: str) -> Iterator[Item]:
    for file_name, content in unpacked(raw, name, _FILE):
        value = load_json(content)
        if not isinstance(value, list):
            raise Unreadable("a Claude export is a JSON list of conversations")
        for place, entry in enumerate(value):
            where = f"{file_name.rsplit('/', 1)[-1]}[{place}]"
            if not isinstance(entry, dict) or not isinstance(entry.get("chat_messages"), list) or not text_of(entry.get("uuid")):
                yield Skipped(where, "not a conversation with a uuid and chat_messages")
                continue
            turns = [
                Turn(_ROLES[message["sender"]], parts_text(message.get("content")) or parts_text(message.get("text")))
                for message in _branch([m for m in entry["chat_messages"] if isinstance(m, dict)])
                if word(message.get("sender")) in _ROLES
            ]
            updated = instant(entry.get("updated_at")) or instant(entry.get("created_at"))
            yield imported(text_of(entry["uuid"]), entry.get("name"), updated, turns)


def _branch(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages from the newest one up to the first; all of them in an export that tells no parents."""
    by_id = {message["uuid"]: message for message in messages if isinstance(message.get("uuid"), str)}
    if len(by_id) != len(messages) or not any(_parent(message) in by_id for message in messages):
        return messages
    found: list[dict[str, Any]] = []
    node: dict[str, Any] | None = messages[-1]
    while node is not None and node not in found:
        found.append(node)
        node = by_id.get(_parent(node))
    return found[::-1]


def _parent(message: dict[str, Any]) -> str:
    return word(message.get("parent_message_uuid"))
