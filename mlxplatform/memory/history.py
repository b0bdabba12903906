"""The platform's own answered requests as a source, for the API keys whose owner opted in.

A chat is recorded once per answer, each time with all its earlier turns. Every turn is named by a hash of
everything said up to it, its *lineage*; by that name a new record is known to continue a conversation, to
repeat a part of one, or to branch off. A branch becomes a conversation of its own that begins with its own
question, so no exchange is read twice.

How far each key was read is a cursor per key, moved in the transaction that stores what was read. A record
that its owner deletes takes what only it held with it (:func:`deleted` notes it, :func:`gone` tells the next
run). One that is merely too old for the history does not: reading it is what the memory is for.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice

from django.db import transaction
from django.db.models import Max

from mlxplatform.inference import request_log
from mlxplatform.memory import tools
from mlxplatform.memory.ingest import IngestReport, ingest
from mlxplatform.memory.models import Conversation, HistoryRecord, HistoryTurn, Message, Vault, Watermark
from mlxplatform.memory.sources import Imported, Turn, clean, imported

SOURCE = "history"
#: How a cursor, a record and a setting name answers that were asked without a key.
KEYLESS = ""
#: Records stored in one transaction.
BATCH = 200
#: Characters of a first question that become the conversation's title.
TITLE = 80


@dataclass
class _Woven:
    """What a batch of records adds: conversations by id with all their turns, and what to remember of each."""

    conversations: dict[str, list[Turn]] = field(default_factory=dict)
    ended_at: dict[str, dt.datetime] = field(default_factory=dict)
    turns: dict[str, tuple[str, int]] = field(default_factory=dict)
    records: list[HistoryRecord] = field(default_factory=list)


def keys_of(vault: Vault) -> list[str]:
    """The keys whose answers this vault may read; :data:`KEYLESS` stands for use without one."""
    return [*([KEYLESS] if vault.own_history else []), *vault.history_keys]


def read(vault: Vault, check: Callable[[], None] = lambda: None) -> IngestReport:
    """Read what the opted-in keys have had answered since the last time."""
    total = IngestReport()
    for key in keys_of(vault):
        mark, _ = Watermark.objects.get_or_create(vault=vault, source=_cursor_name(key))
        while batch := _next(vault, key, mark.cursor):
            check()
            with transaction.atomic():
                total.add(_store(vault, batch))
                mark.cursor = f"{batch[-1].ended_at.isoformat()} {batch[-1].id}"
                mark.save()
    return total


def _next(vault: Vault, key: str, cursor: str) -> list[request_log.Conversation]:
    """The next records. Read to memory and closed: an open read would keep SQLite from writing after others wrote."""
    found = request_log.conversations(vault.project, after=_position(cursor), key_ids=[key])
    with closing(found):
        return list(islice(found, BATCH))


def _cursor_name(key: str) -> str:
    return f"{SOURCE}:{key}"


def _position(cursor: str) -> tuple[dt.datetime, str] | None:
    at, _, record = cursor.partition(" ")
    return (dt.datetime.fromisoformat(at), record) if record else None


def _store(vault: Vault, batch: Sequence[request_log.Conversation]) -> IngestReport:
    woven = _weave(vault, batch)
    report = ingest(vault, SOURCE, _items(woven))
    HistoryTurn.objects.bulk_create(
        [HistoryTurn(vault=vault, lineage=name, external_id=where[0], position=where[1]) for name, where in woven.turns.items()],
        ignore_conflicts=True,
    )
    HistoryRecord.objects.bulk_create(woven.records, ignore_conflicts=True)
    return report


def _items(woven: _Woven) -> Iterator[Imported]:
    for external_id, turns in woven.conversations.items():
        yield imported(external_id, turns[0].text[:TITLE], woven.ended_at[external_id], turns)


def _weave(vault: Vault, batch: Sequence[request_log.Conversation]) -> _Woven:
    woven = _Woven()
    for record in batch:
        turns = turns_of(record)
        if not any(turn.role in {"assistant", "note"} for turn in turns):
            continue
        names = lineages(turns)
        known = {row[0]: (row[1], row[2]) for row in _known(vault, names)} | {n: w for n in names if (w := woven.turns.get(n))}
        shared = next((place for place in range(len(names), 0, -1) if names[place - 1] in known), 0)
        external_id, position = known[names[shared - 1]] if shared else ("", 0)
        if shared == len(turns):
            woven.records.append(_record(vault, record, external_id, position))
            continue
        have = _have(vault, woven, external_id) if shared else None
        if have is None and shared:
            # Forgotten by its owner: what grows out of it stays away too.
            woven.records.append(_record(vault, record, external_id, position))
            woven.turns |= dict.fromkeys(names[shared:], (external_id, position))
            continue
        if have is None or len(have) != position:
            # Something new, or a branch: it begins with its own question.
            begin = shared - 1 if shared and turns[shared].role == "assistant" else shared
            external_id, have, position = record.id, turns[begin:shared], shared - begin
        woven.conversations[external_id] = [*have, *turns[shared:]]
        woven.ended_at[external_id] = record.ended_at
        woven.turns |= {name: (external_id, position + place) for place, name in enumerate(names[shared:], start=1)}
        woven.records.append(_record(vault, record, external_id, len(woven.conversations[external_id])))
    return woven


def turns_of(record: request_log.Conversation) -> list[Turn]:
    """What the person and the model said, the way it is stored; tool calls and system texts are not memory.

    Of a chat that could look things up in the memory only what the person said counts, as notes: its answers
    repeat the wiki, and a wiki that cites itself can be made to believe anything.
    """
    if any(message.role == "system" and tools.GUIDE in (message.content or "") for message in record.messages):
        said = (clean(message.content or "") for message in record.messages if message.role == "user")
        return [Turn("note", text) for text in said if text]
    return [
        Turn(message.role, text)
        for message in record.messages
        if message.role in {"user", "assistant"} and (text := clean(message.content or ""))
    ]


def lineages(turns: Sequence[Turn]) -> list[str]:
    """For each turn the name of everything said up to it."""
    told, names = hashlib.sha256(), []
    for turn in turns:
        told.update(f"{turn.role}\0{turn.text}\0\0".encode())
        names.append(told.hexdigest()[:32])
    return names


def _known(vault: Vault, names: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    # A long conversation has more turns than a statement takes parameters.
    for start in range(0, len(names), BATCH):
        rows = HistoryTurn.objects.filter(vault=vault, lineage__in=names[start : start + BATCH])
        yield from rows.values_list("lineage", "external_id", "position")


def _have(vault: Vault, woven: _Woven, external_id: str) -> list[Turn] | None:
    """The turns of a conversation as they stand, or None when it is gone."""
    if external_id in woven.conversations:
        return woven.conversations[external_id]
    stored = Message.objects.filter(
        conversation__vault=vault, conversation__source=SOURCE, conversation__external_id=external_id
    ).order_by("position")
    return [Turn(role, text) for role, text in stored.values_list("role", "text")] or None


def _record(vault: Vault, record: request_log.Conversation, external_id: str, upto: int) -> HistoryRecord:
    return HistoryRecord(vault=vault, request=record.id, key_id=record.key_id, external_id=external_id, upto=upto)


def deleted(project: str, key_id: str | None = None, request_id: str | None = None) -> None:
    """Note that records were deleted by their owner: of a project, of one of its keys, or a single one."""
    records = HistoryRecord.objects.filter(vault__project=project)
    if key_id is not None:
        records = records.filter(key_id=key_id)
    if request_id is not None:
        records = records.filter(request=request_id)
    records.update(deleted=True)


@dataclass(frozen=True)
class Gone:
    """A conversation of which records were deleted. ``kept`` turns are still in records that exist."""

    conversation: Conversation
    kept: int


def gone(vault: Vault) -> list[Gone]:
    """Conversations that hold turns which no record has any more."""
    touched = HistoryRecord.objects.filter(vault=vault, deleted=True).values_list("external_id", flat=True).distinct()
    kept = dict(
        HistoryRecord.objects.filter(vault=vault, deleted=False, external_id__in=touched)
        .values_list("external_id")
        .annotate(upto=Max("upto"))
    )
    found = vault.conversations.filter(source=SOURCE, external_id__in=touched).annotate(turns=Max("messages__position"))
    return [Gone(row, kept.get(row.external_id, 0)) for row in found if kept.get(row.external_id, 0) < row.turns]


def done_with(vault: Vault, conversation: str) -> None:
    """The deleted records of a conversation have had their effect."""
    HistoryRecord.objects.filter(vault=vault, external_id=conversation, deleted=True).delete()
