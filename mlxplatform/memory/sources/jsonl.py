"""Plain JSON lines: a conversation a line (``id``, ``title``, ``updated_at``, ``messages``), or a message a line.

Message lines carry ``conversation`` (or ``conversation_id``), ``role`` and ``content``; they are gathered
by conversation in order of appearance.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from mlxplatform.memory.sources import Imported, Item, Skipped, Turn, imported, instant, parts_text, text_of, unpacked

_FILE = re.compile(r"\.(jsonl|ndjson)$")
_ROLES = {"user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant", "model": "assistant"}


def read(raw: bytes, name: str) -> Iterator[Item]:
    for file_name, content in unpacked(raw, name, _FILE):
        short = file_name.rsplit("/", 1)[-1]
        gathered: dict[str, list[dict[str, Any]]] = {}
        for place, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").splitlines(), start=1):
            if not line.strip():
                continue
            try:
                entry = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                yield Skipped(f"{short}:{place}", "not valid JSON")
                continue
            messages = entry.get("messages", entry.get("conversations")) if isinstance(entry, dict) else None
            if isinstance(messages, list):
                yield _conversation(entry, messages, f"{short}:{place}")
            elif isinstance(entry, dict) and (key := text_of(entry.get("conversation") or entry.get("conversation_id"))):
                gathered.setdefault(key, []).append(entry)
            else:
                yield Skipped(f"{short}:{place}", "has neither messages nor a conversation with role and content")
        for key, entries in gathered.items():
            times = [moment for entry in entries if (moment := instant(entry.get("at") or entry.get("timestamp")))]
            title = next((entry["title"] for entry in entries if isinstance(entry.get("title"), str)), "")
            yield imported(key, title, max(times, default=None), _turns(entries))


def _turns(messages: list[Any]) -> list[Turn]:
    turns = []
    for message in messages:
        if isinstance(message, dict):
            role = _ROLES.get(str(message.get("role", message.get("from", ""))))
            if role:
                turns.append(Turn(role, parts_text(message.get("content", message.get("value")))))
    return turns


def _conversation(entry: dict[str, Any], messages: list[Any], where: str) -> Imported | Skipped:
    turns = _turns(messages)
    if not turns:
        return Skipped(where, "has no message by a user or an assistant")
    told = "\n".join(turn.text for turn in turns).encode("utf-8", "replace")
    external_id = text_of(entry.get("id") or entry.get("uuid")) or hashlib.sha256(told).hexdigest()[:32]
    updated = instant(entry.get("updated_at") or entry.get("created_at") or entry.get("timestamp"))
    return imported(external_id, entry.get("title"), updated, turns)
