"""``/v1/chat/completions``: create, and for stored ones list, retrieve, resume, update, delete, messages."""

from __future__ import annotations

from typing import Any

import msgspec
from django.http import HttpRequest, HttpResponseBase

from mlxplatform.api import memory_tools, pictures
from mlxplatform.api.fields import metadata, missing, wrong_value
from mlxplatform.api.openai.chat import stored
from mlxplatform.api.openai.chat.parse import parse
from mlxplatform.api.openai.chat.render import ChatFacts, ChatFrames, completion_object, facts_of
from mlxplatform.api.paging import list_object, page_of, query_ascending, query_flag, query_number, query_pairs
from mlxplatform.api.reckoning import Reckoning
from mlxplatform.api.running import Call, Choices, drive, gather, place_call
from mlxplatform.http.body import read_json
from mlxplatform.http.errors import json_response
from mlxplatform.http.sse import EventStreamResponse, heartbeat_seconds
from mlxplatform.http.views import endpoint
from mlxplatform.inference import client, history
from mlxplatform.inference.history import Kind
from mlxplatform.inference.models import StoredAnswer
from mlxplatform.inference.recording import Numbered, mark, record


async def create(request: HttpRequest) -> HttpResponseBase:
    body = memory_tools.with_header(request, await read_json(request))
    asked = parse(body)
    store = asked.store and history.enabled()
    if store and asked.stream and asked.n > 1:
        raise wrong_value("n", "a stored stream has one choice.")
    run = await memory_tools.run_for(request, asked.memory)
    call = await place_call(request, asked)
    facts = facts_of(call)
    if store and asked.stream:
        return await _recorded(call, facts, body["messages"])
    choices = await Choices.submit(call.requests, run)
    if asked.stream:
        return EventStreamResponse(drive(call, choices, ChatFrames(facts)), call.headers)
    answer = completion_object(facts, await gather(call, choices))
    if store:
        await history.off_loop(history.save, stored.record_of(call, facts, body["messages"], answer))
    return json_response(answer, headers=call.headers)


async def _recorded(call: Call, facts: ChatFacts, messages: list[Any]) -> HttpResponseBase:
    """A stored stream: its row exists from admission on, and it outlives a client that comes back in time."""
    await mark(call.id)
    await pictures.keep(call.requests[0])
    stream = await client.submit(msgspec.structs.replace(call.requests[0], stored=True))
    try:
        row = stored.record_of(call, facts, messages, {}, status=history.Status.IN_PROGRESS, host=stream.host)
        await history.off_loop(history.save, row)
    except BaseException:
        stream.stop("not_stored")
        raise

    async def on_end(events: list[Numbered]) -> None:
        await stored.end_row(call.id, facts, events)
        reckoning = Reckoning(call, live=False)
        reckoning.events(event for _, event in events)
        await reckoning.close()

    recording = record(stream, background=False, on_end=on_end)
    return EventStreamResponse(stored.frames(recording.follow(heartbeat_seconds()), facts), call.headers)


def _project(request: HttpRequest) -> str:
    return getattr(request, "project", "default")


async def _row(request: HttpRequest, completion_id: str) -> StoredAnswer:
    row = await history.off_loop(history.load, completion_id, Kind.CHAT, _project(request))
    if row is None:
        raise stored.not_found(completion_id)
    return await stored.streams.settled(row)


def _shown(row: StoredAnswer) -> dict[str, Any]:
    return {**history.loads(row.answer), "metadata": history.loads(row.metadata)}


async def retrieve(request: HttpRequest, completion_id: str) -> HttpResponseBase:
    """A stored completion, or its stream from ``starting_after`` (or ``Last-Event-ID``) on."""
    row = await _row(request, completion_id)
    if query_flag(request, "stream"):
        after = query_number(request, "starting_after", 0, 0, 2**53)
        last = stored.last_number(row)
        if last is not None and after > last:
            raise wrong_value("starting_after", f"the last event is {last}.")
        seen = _last_event_id(request)
        if "starting_after" not in request.GET and (last is None or seen <= last):
            after = seen
        source = await stored.streams.events_of(row, heartbeat_seconds())
        return EventStreamResponse(stored.frames(source, stored.facts_from(row), after))
    if row.status != history.Status.COMPLETED:
        raise stored.not_found(completion_id)
    return json_response(_shown(row))


def _last_event_id(request: HttpRequest) -> int:
    """The number in ``Last-Event-ID``; what is none, or beyond the last event, replays from the start."""
    raw = request.headers.get("Last-Event-ID", "")
    return int(raw) if raw.isascii() and raw.isdigit() and len(raw) <= 15 else 0


async def list_stored(request: HttpRequest) -> dict[str, Any]:
    limit = query_number(request, "limit", 20, 1, 100)
    ascending = query_ascending(request, default="asc")
    rows, more = await history.off_loop(
        history.page,
        Kind.CHAT,
        _project(request),
        limit=limit,
        after=request.GET.get("after") or None,
        ascending=ascending,
        model=request.GET.get("model"),
        metadata=query_pairs(request, "metadata"),
    )
    return list_object([_shown(row) for row in rows], more)


async def update(request: HttpRequest, completion_id: str) -> dict[str, Any]:
    body = await read_json(request)
    if "metadata" not in body:
        raise missing("metadata")
    row = await _row(request, completion_id)
    pairs = {} if body["metadata"] is None else metadata(body["metadata"], "metadata")
    await history.off_loop(history.update_metadata, row.id, Kind.CHAT, row.project, pairs)
    return {**_shown(row), "metadata": pairs}


async def delete(request: HttpRequest, completion_id: str) -> dict[str, Any]:
    row = await _row(request, completion_id)
    if row.status in history.OPEN and row.host:
        await client.cancel_request(row.id, row.host)
    await history.off_loop(history.delete, row.id, Kind.CHAT, row.project)
    return {"id": completion_id, "object": "chat.completion.deleted", "deleted": True}


async def messages(request: HttpRequest, completion_id: str) -> dict[str, Any]:
    row = await _row(request, completion_id)
    kept = [{"id": f"{row.id}-{index}", **message} for index, message in enumerate(history.loads(row.items))]
    if not query_ascending(request, default="asc"):
        kept.reverse()
    return page_of(kept, request)


chat_completions = endpoint(POST=create, GET=list_stored)
stored_completion = endpoint(GET=retrieve, POST=update, DELETE=delete)
stored_messages = endpoint(GET=messages)
