"""Cutting conversations into passages about one thing each.

The model says where passages begin and end; code makes sure the ranges exist. Passages whose text did not
change are kept as they are, so a conversation that grew is cut only at its new end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction
from django.db.models import F

from mlxplatform.memory.models import Chunk, Conversation, Message
from mlxplatform.memory.report import StageReport
from mlxplatform.memory.synthesis import Ask, Synthesis, chunk_ref, quoted, transcript
from mlxplatform.memory.wiki import wording

STAGE = "segment"
#: Turns in one question: more than a small model can keep apart.
WINDOW_TURNS = 16
#: A range of so few turns is one passage; nothing is asked about it.
UNCUT_TURNS = 2
#: Conversations cut per batch of questions.
BATCH = 64

TASK = (
    "You cut a conversation into passages. Each line begins with the number of its turn. Give for each passage the number of its "
    "first and last turn and a short label that names its subject. Leave out small talk. Answer in JSON."
)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "passages": {
            "type": "array",
            "maxItems": 8,
            "items": {
                "type": "object",
                "properties": {
                    "first": {"type": "integer"},
                    "last": {"type": "integer"},
                    "label": {"type": "string", "maxLength": 60},
                },
                "required": ["first", "last", "label"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["passages"],
    "additionalProperties": False,
}
#: start, end, label
Passage = tuple[int, int, str]


def run(syn: Synthesis) -> None:
    told = syn.report.stage(STAGE)
    waiting = syn.scope.of_conversations(syn.vault.conversations.exclude(chunked=F("digest"))).order_by("updated_at", "id")
    pending = list(waiting)
    told.read = len(pending)
    if not pending:
        told.because = "no conversation is new or has changed"
    for start in range(0, len(pending), BATCH):
        _cut(syn, told, pending[start : start + BATCH])


def _cut(syn: Synthesis, told: StageReport, conversations: Sequence[Conversation]) -> None:
    windows: list[tuple[Conversation, list[Message]]] = []
    asks: list[Ask] = []
    kept: dict[int, list[Chunk]] = {}
    passages: dict[int, list[Passage]] = {}
    asked: list[int] = []
    everything: dict[int, list[Message]] = {}
    system = syn.system(STAGE, TASK)
    for conversation in conversations:
        messages = list(conversation.messages.all())
        everything[conversation.pk] = messages
        kept[conversation.pk], begin = _unchanged(conversation, messages)
        passages[conversation.pk] = []
        if not any(message.role in {"assistant", "note"} for message in messages):
            told.count("without an answer")
            continue
        for window in _windows([m for m in messages if m.position >= begin], syn.vault.note_chars):
            windows.append((conversation, window))
            if len(window) > UNCUT_TURNS:
                asked.append(len(windows) - 1)
                prompt = quoted(transcript(window, syn.vault.note_chars, numbered=True))
                asks.append(Ask(STAGE, conversation.hash, system, prompt, SCHEMA, max_tokens=500))
    answers = dict(zip(asked, syn.ask(told, asks), strict=True))
    for place, (conversation, window) in enumerate(windows):
        whole = [(window[0].position, window[-1].position, conversation.title or window[0].text)]
        answer = answers.get(place)
        if answer is None:
            found = whole
        elif answer.value is None:
            told.count("cut without the model")
            found = whole
        else:
            spans = repaired(answer.value["passages"], window[0].position, window[-1].position)
            found = whole_exchanges(spans, {message.position: message.role for message in window})
        passages[conversation.pk] += found
    for conversation in conversations:
        syn.check()
        _store(conversation, everything[conversation.pk], kept[conversation.pk], passages[conversation.pk])
        told.count("passages", len(passages[conversation.pk]))


def _unchanged(conversation: Conversation, messages: Sequence[Message]) -> tuple[list[Chunk], int]:
    """Passages whose text is the same as when they were cut, and the first turn that needs cutting."""
    by_position = {message.position: message for message in messages}
    kept: list[Chunk] = []
    for chunk in conversation.chunks.order_by("start", "end"):
        turns = [by_position[p] for p in range(chunk.start, chunk.end + 1) if p in by_position]
        if len(turns) != chunk.end - chunk.start + 1 or chunk_ref(conversation, turns) != chunk.ref:
            return [c for c in kept if c.end < chunk.start], chunk.start
        kept.append(chunk)
    return kept, max((chunk.end for chunk in kept), default=0) + 1


def _windows(messages: Sequence[Message], limit: int) -> list[list[Message]]:
    """Runs of turns that fit one question, each begun by a person where possible."""
    windows: list[list[Message]] = []
    size = 0
    for message in messages:
        length = min(len(message.text), limit // 4)
        full = windows and (size + length > limit or len(windows[-1]) >= WINDOW_TURNS)
        if not windows or (full and (message.role == "user" or len(windows[-1]) >= WINDOW_TURNS + 2)):
            windows.append([])
            size = 0
        windows[-1].append(message)
        size += length
    return windows


def repaired(passages: Sequence[dict[str, Any]], first: int, last: int) -> list[Passage]:
    """Ranges made real: swapped ends swapped back, ends outside moved to the edge, a gap at the end closed.

    Passages may overlap. No passages is an answer: nothing here is worth keeping.
    """
    found: dict[tuple[int, int], str] = {}
    for passage in passages:
        start, end = sorted((passage["first"], passage["last"]))
        if end < first or start > last:
            continue
        found.setdefault((max(start, first), min(end, last)), passage["label"])
    ordered = sorted(found)
    if ordered:
        latest = max(ordered, key=lambda span: span[1])
        if latest[1] < last:
            label = found.pop(latest)
            found.setdefault((latest[0], last), label)
    return [(start, end, found[start, end]) for start, end in sorted(found)]


def whole_exchanges(passages: Sequence[Passage], roles: Mapping[int, str]) -> list[Passage]:
    """Passages that begin with a question and end with an answer, without those that lie inside another one.

    Small models cut between a question and its answer and name every range they can think of; each would be
    counted as a passage of its own.
    """
    grown: dict[tuple[int, int], str] = {}
    for start, end, label in passages:
        while roles.get(start) == "assistant" and start - 1 in roles:
            start -= 1
        while roles.get(end) == "user" and roles.get(end + 1) == "assistant":
            end += 1
        grown.setdefault((start, end), label)
    outer = [
        (start, end) for start, end in grown if not any(s <= start and end <= e and (s, e) != (start, end) for s, e in grown)
    ]
    return [(start, end, grown[start, end]) for start, end in sorted(outer)]


def _label(text: str, conversation: Conversation, turns: Sequence[Message]) -> str:
    """A passage's label: short, and not the beginning of what it labels."""
    wanted = wording.label(text)
    repeats = any(wording.plain(turn.text, 1000).casefold().startswith(wanted.casefold().rstrip("…")) for turn in turns)
    return wording.label(conversation.title) if repeats and conversation.title else wanted


def _store(conversation: Conversation, messages: Sequence[Message], kept: Sequence[Chunk], passages: Sequence[Passage]) -> None:
    by_position = {message.position: message for message in messages}
    with transaction.atomic():
        conversation.chunks.exclude(pk__in=[chunk.pk for chunk in kept]).delete()
        have = {chunk.ref for chunk in kept}
        rows = []
        for start, end, label in passages:
            turns = [by_position[p] for p in range(start, end + 1) if p in by_position]
            ref = chunk_ref(conversation, turns) if turns else ""
            if ref and ref not in have:
                have.add(ref)
                rows.append(
                    Chunk(
                        vault_id=conversation.vault_id,
                        conversation=conversation,
                        ref=ref,
                        start=start,
                        end=end,
                        label=_label(label, conversation, turns),
                        at=conversation.updated_at,
                    )
                )
        Chunk.objects.bulk_create(rows)
        Conversation.objects.filter(pk=conversation.pk).update(chunked=conversation.digest)
