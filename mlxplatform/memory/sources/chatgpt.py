"""ChatGPT's data export: ``conversations.json``, alone or in its zip, each conversation a tree of messages."""

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


def read(raw: bytes, name: str) -> Iterator[Item]:
    for file_name, content in unpacked(raw, name, _FILE):
        value = load_json(content)
        if not isinstance(value, list):
            raise Unreadable("a ChatGPT export is a JSON list of conversations")
        for place, entry in enumerate(value):
            where = f"{file_name.rsplit('/', 1)[-1]}[{place}]"
            if not isinstance(entry, dict) or not isinstance(entry.get("mapping"), dict):
                yield Skipped(where, "not a conversation with a mapping")
                continue
            external_id = text_of(entry.get("conversation_id") or entry.get("id"))
            if not external_id:
                yield Skipped(where, "has no id")
                continue
            updated = instant(entry.get("update_time")) or instant(entry.get("create_time"))
            yield imported(external_id, entry.get("title"), updated, _branch(entry))


def _branch(entry: dict[str, Any]) -> list[Turn]:
    """The turns of the branch that was shown last: from its leaf up to the root."""
    mapping = entry["mapping"]
    node: Any = word(entry.get("current_node"))
    if node not in mapping:
        leaves = [key for key, value in mapping.items() if isinstance(value, dict) and not value.get("children")]
        node = leaves[-1] if leaves else None
    turns: list[Turn] = []
    seen: set[str] = set()
    while isinstance(node, str) and node in mapping and node not in seen:
        seen.add(node)
        value = mapping[node] if isinstance(mapping[node], dict) else {}
        if turn := _turn(value.get("message")):
            turns.append(turn)
        node = value.get("parent")
    return turns[::-1]


def _turn(message: Any) -> Turn | None:
    if not isinstance(message, dict):
        return None
    author, content, about = (_object(message.get(key)) for key in ("author", "content", "metadata"))
    role = word(author.get("role"))
    if role not in {"user", "assistant"} or about.get("is_visually_hidden_from_conversation"):
        return None
    if word(content.get("content_type", "text")) not in {"text", "multimodal_text"}:
        return None
    return Turn(role, parts_text(content.get("parts")))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
