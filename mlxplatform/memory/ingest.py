"""Reading conversations into the ledger: each once, again only when its text changed.

Knows what is new by content, so an export may be imported any number of times, in parts and in any order.
What a person asked to forget is not read again.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from django.db import connection, transaction
from django.utils import timezone

from mlxplatform.memory.models import Conversation, Message, Tombstone, Vault, Watermark
from mlxplatform.memory.sources import Imported, Item, Skipped

#: Conversations written in one transaction.
BATCH = 500
#: Reasons kept in a report; the rest is counted.
REASONS_KEPT = 20


#: conversation, position, role, text
MessageRow = tuple[int, int, str, str]


@dataclass
class IngestReport:
    added: int = 0
    changed: int = 0
    unchanged: int = 0
    empty: int = 0
    forgotten: int = 0
    skipped: int = 0
    reasons: list[str] = field(default_factory=list)
    #: External ids present in the import, for sources that are complete.
    seen: set[str] = field(default_factory=set)

    def add(self, other: IngestReport) -> None:
        """Count another import in."""
        for name in ("added", "changed", "unchanged", "empty", "forgotten", "skipped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.reasons += other.reasons[: REASONS_KEPT - len(self.reasons)]
        self.seen |= other.seen

    def as_json(self) -> dict[str, object]:
        counts = {name: getattr(self, name) for name in ("added", "changed", "unchanged", "empty", "forgotten", "skipped")}
        return {**counts, "reasons": self.reasons}


def digest_of(item: Imported) -> str:
    return digest_of_turns((turn.role, turn.text) for turn in item.turns)


def digest_of_turns(turns: Iterable[tuple[str, str]]) -> str:
    """Names a conversation's present text."""
    told = hashlib.sha256()
    for role, text in turns:
        told.update(f"{role}\0{text}\0\0".encode())
    return told.hexdigest()[:32]


def short_hash(source: str, external_id: str, taken: set[str]) -> str:
    """The 8 hex digits that footnotes cite. Two conversations never share them: a collision is salted away."""
    salt = 0
    while True:
        name = f"{source}\0{external_id}" + (f"\0{salt}" if salt else "")
        value = hashlib.sha256(name.encode()).hexdigest()[:8]
        if value not in taken:
            return value
        salt += 1


def ingest(vault: Vault, source: str, items: Iterable[Item], at: dt.datetime | None = None) -> IngestReport:
    """Store what is new. ``at`` dates conversations that carry no time of their own."""
    report = IngestReport()
    known = {row[0]: row[1:] for row in vault.conversations.filter(source=source).values_list("external_id", "id", "digest")}
    taken = set(vault.conversations.values_list("hash", flat=True))
    tombs = set(Tombstone.objects.filter(vault=vault, kind="conversation").values_list("key", flat=True))
    undated = at or timezone.now()
    newest: dt.datetime | None = None
    for batch in _batches(items):
        fresh: list[tuple[Conversation, Imported]] = []
        changed: list[tuple[int, Imported, str]] = []
        for item in batch:
            if isinstance(item, Skipped):
                report.skipped += 1
                if len(report.reasons) < REASONS_KEPT:
                    report.reasons.append(f"{item.where}: {item.reason}")
                continue
            report.seen.add(item.external_id)
            if f"{source}:{item.external_id}" in tombs:
                report.forgotten += 1
                continue
            if not item.turns:
                report.empty += 1
                continue
            digest = digest_of(item)
            updated = item.updated_at or undated
            newest = max(newest, updated) if newest else updated
            if item.external_id in known:
                pk, old = known[item.external_id]
                if old == digest:
                    report.unchanged += 1
                    continue
                known[item.external_id] = (pk, digest)
                changed.append((pk, item, digest))
            else:
                value = short_hash(source, item.external_id, taken)
                taken.add(value)
                known[item.external_id] = (0, digest)
                row = Conversation(
                    vault=vault,
                    source=source,
                    external_id=item.external_id,
                    hash=value,
                    title=item.title,
                    updated_at=updated,
                    digest=digest,
                )
                fresh.append((row, item))
        _store(fresh, changed, undated)
        report.added += len(fresh)
        report.changed += len(changed)
    if newest is not None:
        _advance(vault, source, newest)
    return report


def _store(fresh: list[tuple[Conversation, Imported]], changed: list[tuple[int, Imported, str]], undated: dt.datetime) -> None:
    with transaction.atomic():
        Conversation.objects.bulk_create([row for row, _ in fresh])
        messages: list[MessageRow] = []
        for row, item in fresh:
            messages += _messages(row.pk, item)
        for pk, item, digest in changed:
            Message.objects.filter(conversation_id=pk).delete()
            Conversation.objects.filter(pk=pk).update(digest=digest, updated_at=item.updated_at or undated, title=item.title)
            messages += _messages(pk, item)
        _insert(messages)


def _insert(rows: list[MessageRow]) -> None:
    """Plain inserts: a model instance for each of 80,000 turns costs more than all the rest of an import."""
    table = connection.ops.quote_name(Message._meta.db_table)
    if rows:
        with connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {table} (conversation_id, position, role, text) VALUES (%s, %s, %s, %s)", rows)  # noqa: S608


def _messages(conversation: int, item: Imported) -> list[MessageRow]:
    return [(conversation, place, turn.role, turn.text) for place, turn in enumerate(item.turns, start=1)]


def _advance(vault: Vault, source: str, newest: dt.datetime) -> None:
    mark, _ = Watermark.objects.get_or_create(vault=vault, source=source)
    cursor = f"{newest.astimezone(dt.UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
    if cursor > mark.cursor:
        mark.cursor = cursor
        mark.save()


def _batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    iterator = iter(items)
    while batch := list(islice(iterator, BATCH)):
        yield batch
