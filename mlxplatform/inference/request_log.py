"""One row for every finished request: written in batches, bounded with the rest of the history, read by projects.

A protocol hands over an :class:`Ended` when an answer ended, however it ended; a thread of this module writes what
piled up in one statement, so that a busy server writes a few times a second rather than once a request. A killed
process loses at most :data:`FLUSH_SECONDS` of lines, never half of one, and none is written twice.

What was said is kept only of answers that ended well, and only when the client did not ask for nothing to be kept.
Readers see one project at a time, in the order in which requests ended.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet
from django.dispatch import Signal
from django.utils import timezone

from mlxplatform.behind import WriteBehind
from mlxplatform.inference.contract import Message, ToolCall, Usage
from mlxplatform.inference.models import FinishedRequest

log = structlog.get_logger(__name__)

Outcome = FinishedRequest.Outcome

#: Longest time a finished request stays unwritten, seconds.
FLUSH_SECONDS = 1.0
#: Rows of one statement.
FLUSH_ROWS = 200
#: Finished requests kept in memory while the database cannot be written; the oldest are dropped beyond it.
PENDING_MOST = 5000
#: Readers with a cursor see a row this many seconds after its request ended: by then the rows of all processes that
#: belong before it are written.
SETTLED_SECONDS = 5.0
#: Characters of the last question, and of the answers, that search looks at.
SEARCHED = 8000


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """One answer to a conversation."""

    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = []
    finish_reason: str = ""


class Content(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was said: the conversation (or the bare prompt) and its answers, one per choice."""

    messages: list[Message] = []
    prompt: str | None = None
    answers: list[Said] = []


@dataclass(frozen=True)
class Ended:
    """A request that ended, as its protocol saw it. ``content`` None keeps nothing of what was said."""

    id: str
    path: str
    project: str
    key_id: str
    model: str
    outcome: str
    usage: Usage
    duration_s: float
    stream: bool = False
    error_code: str = ""
    first_token_s: float | None = None
    content: Content | None = None


@dataclass(frozen=True)
class Conversation:
    """A finished conversation for those who read the history: all turns, the answer last."""

    id: str
    project: str
    key_id: str
    model: str
    ended_at: datetime
    messages: tuple[Message, ...]


#: Told when an owner deletes rows (never when they grow too old): ``project``, and ``key_id`` or ``request_id`` or None.
forgotten = Signal()

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Content).decode
_lock = threading.Lock()
_pending: list[tuple[datetime, Ended]] = []
#: Held while rows are written, so that a flush that returns has everything in the table.
_writing = threading.Lock()


def add(ended: Ended) -> None:
    """Keep a line about a finished request. Never blocks on the database."""
    if not settings.ENV.store:
        return
    with _lock:
        _pending.append((datetime.now(UTC), ended))
        if len(_pending) > PENDING_MOST:
            del _pending[0]
            log.warning("a finished request is not recorded: the database has not been written for long")
    _behind.wake()


def flush() -> int:
    """Write what has been handed over; the number of rows."""
    written = 0
    with _writing:
        while True:
            with _lock:
                batch = _pending[:FLUSH_ROWS]
            if not batch:
                return written
            FinishedRequest.objects.bulk_create([_row(at, ended) for at, ended in batch], ignore_conflicts=True)
            with _lock:
                # Written ones only: what was dropped or added meanwhile is told apart by identity.
                done = {id(item) for item in batch}
                _pending[:] = [item for item in _pending if id(item) not in done]
            written += len(batch)


_behind = WriteBehind("request-log", flush, FLUSH_SECONDS)


def _row(at: datetime, ended: Ended) -> FinishedRequest:
    content, text = None, ""
    if ended.content is not None:
        content = zlib.compress(_encode(ended.content), 1)
        text = searched(ended.content)
    return FinishedRequest(
        id=ended.id,
        path=ended.path[:64],
        project=ended.project,
        key_id=ended.key_id,
        model=ended.model[:200],
        outcome=ended.outcome,
        error_code=ended.error_code[:64],
        stream=ended.stream,
        prompt_tokens=ended.usage.prompt,
        cached_tokens=ended.usage.cached,
        completion_tokens=ended.usage.completion,
        reasoning_tokens=ended.usage.reasoning,
        first_token_ms=None if ended.first_token_s is None else int(ended.first_token_s * 1000),
        duration_ms=int(ended.duration_s * 1000),
        text=text,
        content=content,
        bytes=len(content or b"") + len(text),
        ended_at=at,
    )


def searched(content: Content) -> str:
    """The last question and the answers, bounded. Without NUL, which a text column of PostgreSQL refuses."""
    asked = next((turn.content for turn in reversed(content.messages) if turn.role == "user" and turn.content), content.prompt)
    answered = "\n".join(said.text for said in content.answers)
    return f"{(asked or '')[-SEARCHED:]}\n{answered[:SEARCHED]}".replace("\0", "")


def content_of(row: FinishedRequest) -> Content | None:
    return None if row.content is None else _decode(zlib.decompress(bytes(row.content)))


def conversations(
    project: str, *, after: tuple[datetime, str] | None = None, key_ids: Collection[str] | None = None
) -> Generator[Conversation, None, None]:
    """Finished conversations of a project in the order they ended, those after the cursor ``(ended_at, id)``.

    ``key_ids`` limits them to requests made with these keys ("" is keyless use). Conversations without an answer in
    text or calls, requests that were no conversation, and those of the last few seconds are not among them.
    """
    settled = timezone.now() - timedelta(seconds=SETTLED_SECONDS)
    rows = _after(FinishedRequest.objects.filter(project=project, content__isnull=False, ended_at__lte=settled), after)
    if key_ids is not None:
        rows = rows.filter(key_id__in=list(key_ids))
    for row in rows.order_by("ended_at", "id").iterator(chunk_size=200):
        content = content_of(row)
        if content is None or not content.messages or not content.answers:
            continue
        said = content.answers[0]
        answer = Message("assistant", said.text or None, reasoning=said.reasoning or None, tool_calls=said.tool_calls or None)
        yield Conversation(row.id, row.project, row.key_id, row.model, row.ended_at, (*content.messages, answer))


def _after(rows: QuerySet[FinishedRequest], after: tuple[datetime, str] | None) -> QuerySet[FinishedRequest]:
    if after is None:
        return rows
    ended_at, row_id = after
    return rows.filter(Q(ended_at__gt=ended_at) | Q(ended_at=ended_at, id__gt=row_id))


def page(
    project: str, *, limit: int, before: str | None = None, search: str = "", outcome: str = "", model: str = ""
) -> tuple[list[FinishedRequest], bool]:
    """The newest rows of a project (those that ended before row ``before``), and whether more follow."""
    rows = FinishedRequest.objects.filter(project=project)
    for value, condition in ((outcome, {"outcome": outcome}), (model, {"model": model}), (search, {"text__icontains": search})):
        if value:
            rows = rows.filter(**condition)
    if before is not None:
        anchor = FinishedRequest.objects.filter(project=project, id=before).values_list("ended_at", "id").first()
        if anchor is None:
            return [], False
        rows = rows.filter(Q(ended_at__lt=anchor[0]) | Q(ended_at=anchor[0], id__lt=anchor[1]))
    found = list(rows.order_by("-ended_at", "-id").defer("content", "text")[: limit + 1])
    return found[:limit], len(found) > limit


def forget(project: str, *, key_id: str | None = None, request_id: str | None = None) -> int:
    """Remove a project's rows, those of one key, or one, on their owner's order; the number removed."""
    rows = FinishedRequest.objects.filter(project=project)
    if key_id is not None:
        rows = rows.filter(key_id=key_id)
    if request_id is not None:
        rows = rows.filter(id=request_id)
    with _lock:  # lines that wait to be written must not come after this
        _pending[:] = [item for item in _pending if not _is_meant(item[1], project, key_id, request_id)]
    with transaction.atomic():
        removed = rows.delete()[0]
        forgotten.send(sender=None, project=project, key_id=key_id, request_id=request_id)
    return removed


def _is_meant(ended: Ended, project: str, key_id: str | None, request_id: str | None) -> bool:
    return ended.project == project and key_id in (None, ended.key_id) and request_id in (None, ended.id)


def facts(row: FinishedRequest) -> dict[str, Any]:
    """A row as JSON values, without what was said."""
    names: Sequence[str] = ("id", "path", "project", "key_id", "model", "outcome", "error_code", "stream")
    counts = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "first_token_ms", "duration_ms")
    return {**{name: getattr(row, name) for name in (*names, *counts)}, "ended_at": row.ended_at.isoformat()}


def whole(row: FinishedRequest) -> dict[str, Any]:
    """A row as JSON values with what was said."""
    content = content_of(row)
    return {**facts(row), "content": None if content is None else _plain(content)}


def _plain(content: Content) -> dict[str, Any]:
    return {
        "messages": [_turn(turn) for turn in content.messages],
        **({} if content.prompt is None else {"prompt": content.prompt}),
        "answers": [
            {
                "text": said.text,
                "reasoning": said.reasoning,
                "finish_reason": said.finish_reason,
                "tool_calls": _calls(said.tool_calls),
            }
            for said in content.answers
        ],
    }


def _turn(turn: Message) -> dict[str, Any]:
    named = {"name": turn.name, "reasoning": turn.reasoning, "tool_call_id": turn.tool_call_id}
    calls = {"tool_calls": _calls(turn.tool_calls)} if turn.tool_calls else {}
    return {"role": turn.role, "content": turn.content, **{k: v for k, v in named.items() if v is not None}, **calls}


def _calls(calls: Sequence[ToolCall]) -> list[dict[str, str]]:
    return [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in calls]
