"""``/v1/responses``: create, retrieve, resume, cancel, delete, input items, and counting of input tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
import structlog
from django.http import HttpRequest, HttpResponseBase

from mlxplatform.api import memory_tools, pictures
from mlxplatform.api.fields import wrong_value
from mlxplatform.api.memory_tools import Rounds
from mlxplatform.api.openai.responses.items import Item, listed
from mlxplatform.api.openai.responses.parse import ResponseAsk, parse, to_asked
from mlxplatform.api.openai.responses.render import STRIDE, ResponseState, facts_of
from mlxplatform.api.openai.responses.store import (
    append_to_conversation,
    end_row,
    kept_at_end,
    merged,
    not_found,
    record_of,
    splice,
    streams,
)
from mlxplatform.api.paging import page_of, query_ascending, query_flag, query_number
from mlxplatform.api.reckoning import Reckoning
from mlxplatform.api.running import Call, place_call
from mlxplatform.http.body import read_json
from mlxplatform.http.errors import json_response
from mlxplatform.http.sse import EventStreamResponse, comment, heartbeat_seconds
from mlxplatform.http.views import endpoint
from mlxplatform.inference import client, history
from mlxplatform.inference.client import Stream, new_id
from mlxplatform.inference.contract import Failed, InferenceRequest, Message, Refusal
from mlxplatform.inference.history import Kind, Status
from mlxplatform.inference.models import StoredAnswer
from mlxplatform.inference.recording import Numbered, mark, record, recording_of

log = structlog.get_logger(__name__)
S = TypeVar("S", Stream, Rounds)

#: Part of the oldest turns dropped at each attempt to fit, and attempts.
DROP_SHARE, DROP_ATTEMPTS = 0.25, 24
#: What admission calls a field, and what this protocol does.
RENAMED = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"}


async def create(request: HttpRequest) -> HttpResponseBase:
    ask = parse(memory_tools.with_header(request, await read_json(request)))
    items, instructions = await splice(ask, getattr(request, "project", "default"))
    asked = to_asked(ask, new_id("resp_"), items, instructions)
    run = await memory_tools.run_for(request, ask.memory)
    call = await place_call(request, asked)
    call.asked.extra["instructions"] = instructions
    facts = facts_of(call)
    new = items[len(items) - len(ask.items) :]
    if ask.conversation is not None:
        facts["new_items"] = new
    if ask.store and (ask.stream or ask.background) and run is None:
        return await _recorded(call, ask, facts, items)
    stream = await (
        _submit(client.submit, ask, call.requests[0])
        if run is None
        else _submit(partial(Rounds.submit, run=run), ask, call.requests[0])
    )
    state = ResponseState(facts)
    if ask.stream:
        source = _live(call, stream)
        return EventStreamResponse(_frames(kept_at_end(source, call, facts, items) if ask.store else source, state), call.headers)
    answer = await _whole(call, stream, state)
    if ask.store:
        await history.off_loop(history.save, record_of(call, facts, items, answer))
        if ask.conversation is not None:
            await history.off_loop(append_to_conversation, ask.conversation, new, answer["output"])
    return json_response(answer, headers=call.headers)


async def _recorded(call: Call, ask: ResponseAsk, facts: dict[str, Any], items: list[Item]) -> HttpResponseBase:
    """A stored stream or a background response: its row exists from admission on."""
    kept = msgspec.structs.replace(call.requests[0], stored=True, background=ask.background)
    await mark(call.id)
    await pictures.keep(kept)
    stream = await _submit(client.submit, ask, kept)
    state = ResponseState(facts)
    state.status = Status.QUEUED if ask.background and not ask.stream else Status.IN_PROGRESS
    opened = state.object()
    try:
        row = record_of(call, facts, items, opened, background=ask.background, host=stream.host)
        await history.off_loop(history.save, row)
    except BaseException:
        stream.stop("not_stored")
        raise

    async def on_end(events: list[Numbered]) -> None:
        await end_row(call.id, facts, events)
        reckoning = Reckoning(call, live=False)
        reckoning.events(event for _, event in events)
        await reckoning.close()

    recording = record(stream, background=ask.background, on_end=on_end)
    if ask.stream:
        return EventStreamResponse(_frames(recording.follow(heartbeat_seconds()), ResponseState(facts)), call.headers)
    return json_response(opened, headers=call.headers)


async def _submit(send: Callable[[InferenceRequest], Awaitable[S]], ask: ResponseAsk, request: InferenceRequest) -> S:
    """Submit; with ``truncation: auto`` drop the oldest turns until the prompt fits."""
    for _ in range(DROP_ATTEMPTS):
        try:
            return await send(request)
        except Refusal as refusal:
            shorter = _shortened(request.messages)
            refusal.param = RENAMED.get(refusal.param or "", refusal.param)
            if not ask.truncates or refusal.code != "context_length_exceeded" or shorter is None:
                raise
            request = msgspec.structs.replace(request, messages=shorter)
    return await send(request)


def _shortened(messages: list[Message]) -> list[Message] | None:
    """Without the oldest quarter of the turns, never cutting calls from their results; None when nothing is left to drop."""
    system = [message for message in messages if message.role == "system"]
    turns = [message for message in messages if message.role != "system"]
    cut = max(1, int(len(turns) * DROP_SHARE))
    while cut < len(turns) and turns[cut].role == "tool":
        cut += 1
    return system + turns[cut:] if cut < len(turns) else None


async def _live(call: Call, stream: Stream | Rounds) -> AsyncGenerator[list[Numbered], None]:
    """Events of a stream that nobody keeps; leaving it cancels the request."""
    reckoning = Reckoning(call)
    interval = heartbeat_seconds()
    try:
        while not stream.finished:
            events = await stream.read(interval, merged=False)
            reckoning.events(events)
            first = stream.seq - len(events) + 1
            yield [(first + offset, event) for offset, event in enumerate(events)]
    finally:
        left = not stream.finished
        if left:
            log.info("request cancelled by client", request_id=call.id, status=499)
        stream.stop()
        await reckoning.close(cancelled=left)


async def _frames(
    source: AsyncGenerator[list[Numbered], None], state: ResponseState, after: int = -1
) -> AsyncGenerator[bytes, None]:
    """Frames numbered above ``after``; a comment for each silence."""
    try:
        yield comment("stream")
        async for batch in source:
            if not batch:
                yield comment()
                continue
            wire = [frame for number, event in merged(state, batch, after) for frame in state.event(number, event)]
            frames = b"".join(frame for number, frame in wire if number > after)
            if frames:
                yield frames
    finally:
        await source.aclose()


async def _whole(call: Call, stream: Stream | Rounds, state: ResponseState) -> dict[str, Any]:
    """The response object of a finished stream.

    Raises:
        Refusal: it failed.
    """
    async for batch in _live(call, stream):
        for number, event in batch:
            if isinstance(event, Failed):
                raise Refusal.from_failed(event)
            state.event(number, event)
    return state.object()


async def _row(request: HttpRequest, response_id: str) -> StoredAnswer:
    row = await history.off_loop(history.load, response_id, Kind.RESPONSE, getattr(request, "project", "default"))
    if row is None:
        raise not_found(response_id)
    return await streams.settled(row)


async def retrieve(request: HttpRequest, response_id: str) -> HttpResponseBase:
    row = await _row(request, response_id)
    if not query_flag(request, "stream"):
        answer = history.loads(row.answer)
        recording = recording_of(row.id)
        if row.status == Status.QUEUED and recording is not None and recording.events:
            answer["status"] = Status.IN_PROGRESS
        return json_response(answer)
    after = query_number(request, "starting_after", -1, -1, 2**53)
    if row.events is not None and after > (last := len(history.unpack_events(bytes(row.events))) * STRIDE):
        raise wrong_value("starting_after", f"the last event is before {last}.")
    source = await streams.events_of(row, heartbeat_seconds())
    return EventStreamResponse(_frames(source, ResponseState(history.loads(row.request)), after))


async def delete(request: HttpRequest, response_id: str) -> dict[str, Any]:
    row = await _row(request, response_id)
    if row.status in history.OPEN and row.host:
        await client.cancel_request(row.id, row.host)
    await history.off_loop(history.delete, row.id, Kind.RESPONSE, row.project)
    return {"id": response_id, "object": "response", "deleted": True}


async def cancel(request: HttpRequest, response_id: str) -> dict[str, Any]:
    """Stop an open response; a finished one is answered as it is."""
    row = await _row(request, response_id)
    answer: dict[str, Any] = history.loads(row.answer)
    if row.status not in history.OPEN:
        return answer
    await client.cancel_request(row.id, row.host)
    answer["status"] = Status.CANCELLED
    if not await history.off_loop(history.end, row.id, Status.CANCELLED, answer, None):
        answer = history.loads((await _row(request, response_id)).answer)
    return answer


async def input_items(request: HttpRequest, response_id: str) -> dict[str, Any]:
    row = await _row(request, response_id)
    items = listed(history.loads(row.items))
    if not query_ascending(request, default="desc"):
        items.reverse()
    return page_of(items, request)


async def count_input(request: HttpRequest) -> dict[str, Any]:
    ask = parse(memory_tools.with_header(request, await read_json(request)))
    items, instructions = await splice(ask, getattr(request, "project", "default"))
    call = await place_call(request, to_asked(ask, new_id("resp_"), items, instructions))
    return {"object": "response.input_tokens", "input_tokens": await client.count_tokens(call.requests[0])}


responses = endpoint(POST=create)
response_detail = endpoint(GET=retrieve, DELETE=delete)
response_cancel = endpoint(POST=cancel)
response_items = endpoint(GET=input_items)
response_count = endpoint(POST=count_input)
