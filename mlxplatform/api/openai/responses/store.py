"""Responses and history: what a request continues, what is kept of an answer, and how an open row is ended."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from mlxplatform.api.openai.kept_streams import KeptStreams, is_end
from mlxplatform.api.openai.responses.items import Item, carried, response_of, to_messages
from mlxplatform.api.openai.responses.parse import ResponseAsk
from mlxplatform.api.openai.responses.render import ResponseState, delta_number
from mlxplatform.api.reckoning import Reckoning
from mlxplatform.api.running import Call, remembered_call
from mlxplatform.inference import history
from mlxplatform.inference.contract import Reasoning, Refusal, Text
from mlxplatform.inference.history import Kind, Record, Status
from mlxplatform.inference.models import StoredAnswer
from mlxplatform.inference.recording import Numbered


def not_found(answer_id: str, param: str | None = None, what: str = "Response") -> Refusal:
    code = f"{what.lower()}_not_found"
    return Refusal(404, code, f"{what} with id '{answer_id[:80]}' not found.", param=param)


async def splice(ask: ResponseAsk, project: str) -> tuple[list[Item], str | None]:
    """Items of the whole conversation, and the instructions in force.

    Raises:
        Refusal: 404 for a response, conversation or item that is unknown, expired, of another project, or not finished.
    """
    new = await dereferenced(ask.items, project)
    if ask.previous is not None:
        row = await history.off_loop(history.load, ask.previous, Kind.RESPONSE, project)
        if row is not None:
            row = await streams.settled(row)
        if row is None or row.status not in {Status.COMPLETED, Status.INCOMPLETE}:
            raise not_found(ask.previous, "previous_response_id")
        earlier = history.loads(row.items) + carried(history.loads(row.answer)["output"])
        instructions = ask.instructions
        if instructions is None:
            instructions = history.loads(row.request)["echo"].get("instructions")
        return earlier + new, instructions
    if ask.conversation is not None:
        row = await history.off_loop(history.load, ask.conversation, Kind.CONVERSATION, project)
        if row is None:
            raise not_found(ask.conversation, "conversation", "Conversation")
        return history.loads(row.items) + new, ask.instructions
    return new, ask.instructions


async def dereferenced(items: Sequence[Item], project: str) -> list[Item]:
    """The items with each reference replaced by the stored item it names.

    Raises:
        Refusal: 404 naming the reference that leads nowhere.
    """
    found: list[Item] = []
    for index, item in enumerate(items):
        if item["type"] != "item_reference":
            found.append(item)
            continue
        answer_id = response_of(item["id"])
        row = await history.off_loop(history.load, answer_id, Kind.RESPONSE, project) if answer_id else None
        output = history.loads(row.answer).get("output", []) if row is not None else []
        kept = next((one for one in output if one.get("id") == item["id"]), None)
        if kept is None:
            raise not_found(item["id"], f"input[{index}].id", "Item")
        found.append(kept)
    return found


def record_of(call: Call, facts: dict[str, Any], items: list[Item], answer: dict[str, Any], **more: Any) -> Record:
    return Record(
        id=call.id,
        kind=Kind.RESPONSE,
        project=call.project,
        created_by=call.made_by,
        model=call.model,
        request=facts,
        items=items,
        answer=answer,
        metadata=answer.get("metadata") or {},
        status=answer["status"],
        **more,
    )


def rebuild(facts: dict[str, Any], events: Sequence[Numbered]) -> ResponseState:
    state = ResponseState(facts)
    for number, event in events:
        state.event(number, event)
    return state


async def end_row(answer_id: str, facts: dict[str, Any], events: Sequence[Numbered]) -> bool:
    """End an open row with what its events say; False when it was ended before (cancelled), and keeps that end."""
    state = rebuild(facts, events)
    packed = history.pack_events([event for _, event in events])
    if not await history.off_loop(history.end, answer_id, state.status, state.object(), packed):
        return False
    await _continue_conversation(facts, state)
    return True


async def _continue_conversation(facts: dict[str, Any], state: ResponseState) -> None:
    conversation = facts["echo"].get("conversation")
    if conversation and state.status in {Status.COMPLETED, Status.INCOMPLETE}:
        await history.off_loop(append_to_conversation, conversation["id"], facts["new_items"], state.output)


async def kept_at_end(
    source: AsyncGenerator[list[Numbered], None], call: Call, facts: dict[str, Any], items: list[Item]
) -> AsyncGenerator[list[Numbered], None]:
    """The batches of a stream that no gpu process can number, since it is made of several requests: its row is written
    when it has ended, before the end is shown. What its reader leaves early is not kept."""
    seen: list[Numbered] = []
    try:
        async for batch in source:
            seen += batch
            if is_end(batch):
                packed = history.pack_events([event for _, event in seen])
                state = rebuild(facts, seen)
                await history.off_loop(history.save, record_of(call, facts, items, state.object(), events=packed))
                await _continue_conversation(facts, state)
            yield batch
    finally:
        await source.aclose()


async def end_orphan(row: StoredAnswer, events: Sequence[Numbered]) -> None:
    """End a row whose own process died, and reckon its call in that process's place."""
    facts = history.loads(row.request)
    if await end_row(row.id, facts, events):
        messages = to_messages(history.loads(row.items), facts["echo"].get("instructions"))
        reckoning = Reckoning(remembered_call(row, messages, facts), live=False)
        reckoning.events(event for _, event in events)
        await reckoning.close()


def append_to_conversation(conversation_id: str, new: list[Item], output: list[Item]) -> None:
    """Add an answered turn: its input and its output."""
    history.change_items(conversation_id, lambda kept: [*kept, *new, *carried(output)])


streams = KeptStreams("response", end_orphan)


def merged(state: ResponseState, batch: Sequence[Numbered], after: int) -> list[Numbered]:
    """The batch with runs of text joined where that changes no numbering: only inside an item that is open, and never
    across the point up to which the reader has already seen."""
    out: list[Numbered] = []
    for number, event in batch:
        last = out[-1][1] if out else None
        inside = state.continues(event) if len(out) < 2 else type(out[-2][1]) is type(event)
        unseen = bool(out) and delta_number(out[-1][0]) > after
        if (
            isinstance(event, (Text, Reasoning))
            and isinstance(last, (Text, Reasoning))
            and type(last) is type(event)
            and inside
            and unseen
        ):
            out[-1] = (number, type(event)(last.text + event.text, [*last.logprobs, *event.logprobs]))
        else:
            out.append((number, event))
    return out
