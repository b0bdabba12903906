"""Stored chat completions: what is kept, how a kept stream is replayed, and how an open row is ended."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec

from mlxplatform.api.openai.chat.parse import read_messages
from mlxplatform.api.openai.chat.render import ChatFacts, ChatFrames, completion_object
from mlxplatform.api.openai.kept_streams import KeptStreams
from mlxplatform.api.reckoning import Reckoning
from mlxplatform.api.running import STREAM_BEGINS, Call, remembered_call
from mlxplatform.http.sse import comment
from mlxplatform.inference import history
from mlxplatform.inference.client import Completion, Gathering
from mlxplatform.inference.contract import Admitted, Failed, Finished, Reasoning, Refusal, Text, Usage
from mlxplatform.inference.history import Kind, Record, Status
from mlxplatform.inference.models import StoredAnswer
from mlxplatform.inference.recording import Numbered


def not_found(answer_id: str) -> Refusal:
    return Refusal(404, "completion_not_found", f"Chat completion with id '{answer_id[:80]}' not found.", param="completion_id")


def record_of(call: Call, facts: ChatFacts, messages: list[Any], answer: dict[str, Any], **more: Any) -> Record:
    """``messages`` are the request's own, as sent."""
    return Record(
        id=call.id,
        kind=Kind.CHAT,
        project=call.project,
        created_by=call.made_by,
        model=call.model,
        request=msgspec.to_builtins(facts),
        items=messages,
        answer=answer,
        metadata=call.asked.metadata or {},
        **more,
    )


def gathered(facts: ChatFacts, events: Sequence[Numbered]) -> Completion | None:
    """The whole answer of a finished stream, None of a failed one."""
    gathering = Gathering(facts.model)
    try:
        for _, event in events:
            completion = gathering.add(event)
            if completion is not None:
                return completion
    except Refusal:
        return None
    return None


async def end_row(answer_id: str, facts: ChatFacts, events: Sequence[Numbered]) -> bool:
    """End an open row; an answer that failed or was cancelled is not kept. False when it was ended before."""
    completion = gathered(facts, events)
    status = Status.FAILED if completion is None else Status.COMPLETED
    answer = {} if completion is None else completion_object(facts, [completion])
    packed = history.pack_events([event for _, event in events])
    return await history.off_loop(history.end, answer_id, status, answer, packed)


async def end_orphan(row: StoredAnswer, events: Sequence[Numbered]) -> None:
    """End a row whose own process died, and reckon its call in that process's place."""
    facts = facts_from(row)
    if await end_row(row.id, facts, events):
        messages = read_messages(history.loads(row.items), "messages")
        reckoning = Reckoning(remembered_call(row, messages, msgspec.to_builtins(facts)), live=False)
        reckoning.events(event for _, event in events)
        await reckoning.close()


def facts_from(row: StoredAnswer) -> ChatFacts:
    return msgspec.convert(history.loads(row.request), ChatFacts)


def last_number(row: StoredAnswer) -> int | None:
    """Number of the last event of an ended stream; None while it is written, and of what was no stream."""
    return None if row.events is None else len(history.unpack_events(bytes(row.events)))


streams = KeptStreams("completion", end_orphan)


async def frames(source: AsyncGenerator[list[Numbered], None], facts: ChatFacts, after: int = 0) -> AsyncGenerator[bytes, None]:
    """Chunks whose ``id:`` is the number of the last event in them; only what comes after ``after``."""
    renderer = ChatFrames(facts)
    try:
        yield STREAM_BEGINS
        async for batch in source:
            if not batch:
                yield comment()
                continue
            out: list[bytes] = []
            for number, event in joined(batch, after):
                match event:
                    case Admitted():
                        frame = renderer.opening().removeprefix(STREAM_BEGINS)
                    case Failed():
                        frame = renderer.failed(event, event.usage or Usage())
                    case _:
                        frame = renderer.event(0, event)
                if frame and number > after:
                    out.append(b"id: %d\n" % number + frame)
                if isinstance(event, Finished):
                    out.append(renderer.closing(event.usage))
            if out:
                yield b"".join(out)
    finally:
        await source.aclose()


def joined(batch: Sequence[Numbered], after: int) -> list[Numbered]:
    """The batch with runs of text joined, never across the point up to which the reader has seen."""
    out: list[Numbered] = []
    for number, event in batch:
        last = out[-1] if out else None
        if last is not None and last[0] > after and isinstance(event, (Text, Reasoning)) and type(last[1]) is type(event):
            before = last[1]
            assert isinstance(before, (Text, Reasoning))
            out[-1] = (number, type(event)(before.text + event.text, [*before.logprobs, *event.logprobs]))
        else:
            out.append((number, event))
    return out
