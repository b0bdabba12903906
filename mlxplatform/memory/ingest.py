"""Reading conversations into the ledger: each once, again only when its text changed.

Knows what is new by content, so an export may be imported any number of times, in parts and in any order.
What a person asked to forget is not read again.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable, Iterator, Mapping
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


@dataclass
class _Known:
    """What the ledger holds of a conversation, or what this import has just read of it (``fresh``)."""

    digest: str
    updated_at: dt.datetime
    pk: int = 0
    fresh: Conversation | None = None


def ingest(vault: Vault, source: str, items: Iterable[Item], at: dt.datetime | None = None) -> IngestReport:
    """Store what is new. ``at`` dates conversations that carry no time of their own.

    A conversation that comes twice, in one export or in two, is kept as its newest copy has it: an older export
    read after a newer one takes nothing back.
    """
    report = IngestReport()
    rows = vault.conversations.filter(source=source).values_list("external_id", "digest", "updated_at", "id")
    known = {external_id: _Known(digest, updated, pk) for external_id, digest, updated, pk in rows}
    taken = set(vault.conversations.values_list("hash", flat=True))
    tombs = set(Tombstone.objects.filter(vault=vault, kind="conversation").values_list("key", flat=True))
    undated = at or timezone.now()
    newest: dt.datetime | None = None
    for batch in _batches(items):
        fresh: dict[str, Imported] = {}
        changed: dict[str, Imported] = {}
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
            have = known.get(item.external_id)
            if have is None:
                value = short_hash(source, item.external_id, taken)
                taken.add(value)
                row = Conversation(
                    vault=vault,
                    source=source,
                    external_id=item.external_id,
                    hash=value,
                    title=item.title,
                    updated_at=updated,
                    digest=digest,
                )
                known[item.external_id] = _Known(digest, updated, fresh=row)
                fresh[item.external_id] = item
                report.added += 1
            elif have.digest == digest or updated < have.updated_at:
                report.unchanged += 1
            elif item.external_id in fresh:
                assert have.fresh is not None
                have.fresh.title, have.fresh.updated_at, have.fresh.digest = item.title, updated, digest
                have.digest, have.updated_at = digest, updated
                fresh[item.external_id] = item
                report.unchanged += 1
            else:
                report.changed += item.external_id not in changed
                have.digest, have.updated_at = digest, updated
                changed[item.external_id] = item
        _store(known, fresh, changed)
    if newest is not None:
        _advance(vault, source, newest)
    return report


def _store(known: Mapping[str, _Known], fresh: Mapping[str, Imported], changed: Mapping[str, Imported]) -> None:
    with transaction.atomic():
        made = Conversation.objects.bulk_create([row for name in fresh if (row := known[name].fresh)])
        messages: list[MessageRow] = []
        for row in made:
            known[row.external_id].pk = row.pk
            messages += _messages(row.pk, fresh[row.external_id])
        for name, item in changed.items():
            have = known[name]
            Message.objects.filter(conversation_id=have.pk).delete()
            Conversation.objects.filter(pk=have.pk).update(digest=have.digest, updated_at=have.updated_at, title=item.title)
            messages += _messages(have.pk, item)
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
