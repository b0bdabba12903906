"""Claude's data export: ``conversations.json``, alone or in its zip."""

from __future__ import annotations

import re
from collections.abc import Iterator

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
                for message in entry["chat_messages"]
                if isinstance(message, dict) and message.get("sender") in _ROLES
            ]
            updated = instant(entry.get("updated_at")) or instant(entry.get("created_at"))
            yield imported(text_of(entry["uuid"]), entry.get("name"), updated, turns)
