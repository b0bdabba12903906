"""The platform's own response history as a source, for vaults whose owner opted in.

A chat is stored once per answer, each time with all its earlier turns. Its first question and answer name
the conversation, so the longest record of one replaces the shorter ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from mlxplatform.inference.models import StoredAnswer
from mlxplatform.memory.models import Vault, Watermark
from mlxplatform.memory.sources import Imported, Item, Skipped, Turn, imported, parts_text

SOURCE = "history"


def read(vault: Vault) -> Iterator[Item]:
    """What was answered since the last look."""
    rows = StoredAnswer.objects.filter(
        project=vault.project, kind__in=(StoredAnswer.Kind.CHAT, StoredAnswer.Kind.RESPONSE), status=StoredAnswer.Status.COMPLETED
    )
    mark = Watermark.objects.filter(vault=vault, source=SOURCE).first()
    if mark and mark.cursor:
        rows = rows.filter(created_at__gt=mark.cursor)
    longest: dict[str, Imported] = {}
    for row in rows.order_by("created_at", "id").iterator(chunk_size=200):
        try:
            turns = _turns(msgspec.json.decode(row.items)) + _answer(msgspec.json.decode(row.answer))
        except (msgspec.DecodeError, UnicodeDecodeError):
            yield Skipped(row.id, "stored in a form that cannot be read")
            continue
        if len(turns) < 2:
            continue
        key = hashlib.sha256("\0".join(turn.text for turn in turns[:2]).encode("utf-8", "replace")).hexdigest()[:32]
        known = longest.get(key)
        if known is None or len(turns) >= len(known.turns):
            longest[key] = imported(key, turns[0].text[:80], row.created_at, turns)
    yield from longest.values()


def _turns(items: Any) -> list[Turn]:
    found = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    return [
        Turn(item["role"], text)
        for item in found
        if item.get("role") in {"user", "assistant"} and (text := parts_text(item.get("content")).strip())
    ]


def _answer(answer: Any) -> list[Turn]:
    if not isinstance(answer, dict):
        return []
    if isinstance(choices := answer.get("choices"), list):
        return _turns([choice["message"] for choice in choices[:1] if isinstance(choice, dict) and "message" in choice])
    return _turns(answer.get("output"))
