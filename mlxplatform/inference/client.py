"""Submitting inference: place, enqueue, await admission, stream, cancel.

The one way any part of the platform asks a model for something outside the rows of a job. ``submit`` returns once
the request is admitted (tokenized and in the waiting list) or raises the Refusal that a protocol turns into a plain
error; if admission takes longer than two seconds the stream starts without it and the client sees heartbeats.
A stream that is dropped, closed or garbage-collected unfinished cancels its request, in every phase.
"""

from __future__ import annotations

import asyncio
import secrets
import weakref
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

import msgspec
import structlog
from django.conf import settings

from mlxplatform.broker import queues
from mlxplatform.broker.connections import BROKER_ERRORS, async_client
from mlxplatform.broker.dramatiq_broker import enqueue
from mlxplatform.inference import placement
from mlxplatform.inference.contract import (
    Admitted,
    Embedded,
    Event,
    Failed,
    Finished,
    FinishReason,
    InferenceRequest,
    Reasoning,
    Refusal,
    Scored,
    Text,
    TokenLogprob,
    ToolCall,
    Transcribed,
    Usage,
    encode,
)
from mlxplatform.inference.hub import Hub, Inbox, control, hub, merge

log = structlog.get_logger(__name__)

#: Seconds within which a request is admitted or refused before its stream starts anyway.
ADMISSION_SECONDS = 2.0
#: And per MiB of request: a long prompt is tokenized before it can be found too long, and that is a plain error.
ADMISSION_SECONDS_PER_MIB = 8.0
#: And with pictures, whose preparation starts a process (5 to 10 s) and waits for those before it.
ADMISSION_SECONDS_WITH_PICTURES = 30.0
#: Seconds to reach the broker before the answer is 503.
BROKER_SECONDS = 2.0
#: Seconds a counting of tokens may take; the preparation child kills what takes longer.
COUNT_SECONDS = 15.0

#: Enqueueing blocks for about a millisecond; it must not wait behind other thread work of the process.
_senders = ThreadPoolExecutor(max_workers=8, thread_name_prefix="enqueue")

BROKER_DOWN = ("broker_unavailable", "The message broker is not reachable. Try again shortly.")


@dataclass(frozen=True)
class Completion:
    """A whole answer. ``model`` is the id of the model that gave it."""

    model: str
    text: str
    reasoning: str
    tool_calls: list[ToolCall]
    finish_reason: FinishReason
    stop_sequence: str | None
    usage: Usage
    logprobs: list[TokenLogprob] = field(default_factory=list)
    vectors: list[bytes] = field(default_factory=list)
    dimensions: int = 0
    scores: list[float] = field(default_factory=list)
    transcript: Transcribed | None = None


def new_id(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(16)}"


class Stream:
    """The events of one submitted request. One reader; ``async for`` yields what piled up."""

    def __init__(self, request: InferenceRequest, host: str, own_hub: Hub, inbox: Inbox) -> None:
        self.request = request
        self.id = request.id
        self.host = host
        self.admitted: Admitted | None = None
        self.finished = False
        #: Number of the last event read.
        self.seq = 0
        self._hub = own_hub
        self._inbox = inbox
        self._early: list[Event] = []
        self._finalizer = weakref.finalize(self, own_hub.abandon, request.id, host)

    async def read(self, timeout: float | None = None, *, merged: bool = True) -> list[Event]:
        """The next events, in order and without a gap; empty after ``timeout`` seconds of silence or at the end.

        ``merged`` joins neighbouring texts; without it there is one event per number, the last of them ``seq``.
        """
        if self.finished:
            return []
        events = await self._take(timeout)
        self.seq += len(events)
        if merged and len(events) > 1:
            events = merge(events)
        if events and isinstance(events[-1], (Finished, Failed)):
            self.finished = True
            self._finalizer.detach()
        return events

    async def _take(self, timeout: float | None) -> list[Event]:
        if self._early:
            events, self._early = self._early, []
            return events
        await self._inbox.wait(timeout)
        events = self._inbox.take()
        for event in events:
            if isinstance(event, Admitted):
                self.admitted = event
        return events

    def __aiter__(self) -> AsyncIterator[list[Event]]:
        return self._batches()

    async def _batches(self) -> AsyncIterator[list[Event]]:
        while not self.finished:
            yield await self.read()

    async def admission(self, timeout: float) -> None:
        """Wait for the first event; later reads still see it.

        Raises:
            Refusal: the request was refused.
        """
        events = await self._take(timeout)
        if events and isinstance(events[0], Failed):
            self.finished = True
            self._finalizer.detach()
            raise Refusal.from_failed(events[0])
        self._early = events

    def stop(self, reason: str = "client_left") -> None:
        """Cancel without waiting; does nothing when the request has ended."""
        if not self.finished:
            self.finished = True
            self._finalizer.detach()
            self._hub.cancel(self.id, self.host, reason)

    def detach(self) -> None:
        """Stop listening and let the request run on (background and stored requests)."""
        self.finished = True
        self._finalizer.detach()
        self._hub.close(self.id)

    async def cancel(self) -> None:
        self.stop("cancelled")
        await self._hub.flush()

    async def aclose(self) -> None:
        """Cancel if unfinished."""
        self.stop("closed")

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()


async def submit(request: InferenceRequest) -> Stream:
    """Start a request whose ``model`` is the id of a model some live host has.

    Raises:
        Refusal: 503 broker or engine down, 429 queue full, or whatever admission found wrong.
    """
    stream: Stream | None = None
    try:
        own_hub = hub()
        await own_hub.ready(BROKER_SECONDS)
        place = await placement.find_place(request.model, kind_of(request), strict=True)
        check_room(own_hub, place.host)
        request = msgspec.structs.replace(request, frames=own_hub.channel)
        body = encoded(request)
        inbox = own_hub.open(request.id, place.host.name, place.host.instance, background=request.outlives)
        stream = Stream(request, place.host.name, own_hub, inbox)
        await _hand_over(request.id, place.host.name, body)
    except (*BROKER_ERRORS, TimeoutError) as error:
        if stream is not None:
            stream.stop("not_sent")  # a slow broker may still get it: nothing must be generated for nobody
        log.warning("broker unreachable", request_id=request.id, error=str(error))
        raise Refusal(503, *BROKER_DOWN, retry_after=2) from None
    try:
        patience = ADMISSION_SECONDS_WITH_PICTURES if request.pictures else ADMISSION_SECONDS
        await stream.admission(patience + ADMISSION_SECONDS_PER_MIB * len(body) / 2**20)
    except BaseException:
        stream.stop()
        raise
    return stream


async def cancel_request(request_id: str, host: str) -> None:
    """Ask a host to stop a request whose end somebody still waits for; its last event will say so.

    Raises:
        redis.ConnectionError, redis.TimeoutError: the broker is down.
    """
    message = control("cancel", request=request_id, reason="cancelled")
    await async_client().rpush(queues.control_key(host), message)


def kind_of(request: InferenceRequest) -> str:
    return request.kind if request.kind in {"embedding", "transcription"} else "chat"


def check_room(own_hub: Hub, host: placement.HostState) -> None:
    """Refuse what the host cannot even have waiting; the host itself counts the requests of other processes."""
    room = host.slots + settings.ENV.queue_limit
    if own_hub.open_on(host.name) >= room:
        raise queue_full(room)


def queue_full(room: int) -> Refusal:
    return Refusal(429, "queue_full", f"The engine is busy: {room} requests run or wait already.", retry_after=1)


def encoded(request: InferenceRequest) -> bytes:
    """Raises:
    Refusal: 400 for what fits no message.
    """
    try:
        return encode(request)
    except OverflowError:
        raise Refusal(400, "integer_above_max_value", "The request holds a whole number beyond 64 bits.") from None


async def _hand_over(request_id: str, host: str, body: bytes) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.wait_for(loop.run_in_executor(_senders, _send, request_id, host, body), BROKER_SECONDS)


def _send(request_id: str, host: str, body: bytes) -> None:
    def store(pipe: Any) -> None:  # before its message: the actor that the message wakes must find it
        pipe.set(queues.request_key(request_id), body, ex=queues.REQUEST_TTL)

    enqueue(queues.interactive(host), queues.GENERATE, request_id, first=store)


class Gathering:
    """An answer put together event by event."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._logprobs: list[TokenLogprob] = []
        self._vectors: list[bytes] = []
        self._dimensions = 0
        self._scores: list[float] = []
        self._transcript: Transcribed | None = None

    def add(self, event: Event) -> Completion | None:
        """Take one event; the whole answer once it is complete.

        Raises:
            Refusal: the request failed.
        """
        match event:
            case Admitted():
                self._model = event.model or self._model
            case Text():
                self._text.append(event.text)
                self._logprobs += event.logprobs
            case Reasoning():
                self._reasoning.append(event.text)
                self._logprobs += event.logprobs
            case ToolCall():
                self._calls.append(event)
            case Embedded():
                self._vectors += event.vectors
                self._dimensions = event.dimensions
            case Scored():
                self._scores += event.logprobs
            case Transcribed():
                self._transcript = event
            case Failed():
                raise Refusal.from_failed(event)
            case Finished():
                return self._completion(event)
        return None

    def _completion(self, end: Finished) -> Completion:
        return Completion(
            model=self._model,
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=self._calls,
            finish_reason=end.reason,
            stop_sequence=end.stop_sequence,
            usage=end.usage,
            logprobs=self._logprobs,
            vectors=self._vectors,
            dimensions=self._dimensions,
            scores=self._scores,
            transcript=self._transcript,
        )


class Readable(Protocol):
    """What reads like the stream of one request."""

    @property
    def request(self) -> InferenceRequest: ...

    def __aiter__(self) -> AsyncIterator[list[Event]]: ...


async def collect(stream: Readable) -> Completion:
    """Read a stream to its end.

    Raises:
        Refusal: the request failed.
    """
    gathering = Gathering(stream.request.model)
    async for events in stream:
        for event in events:
            completion = gathering.add(event)
            if completion is not None:
                return completion
    raise Refusal(503, "engine_unavailable", "The answer was stopped before it was complete.", retry_after=1)


async def run(request: InferenceRequest) -> Completion:
    """Submit and collect; cancelled when the caller is."""
    stream = await submit(request)
    try:
        return await collect(stream)
    finally:
        stream.stop()


async def count_tokens(request: InferenceRequest) -> int:
    """Prompt tokens of a request, rendered and tokenized by the host's preparation child; loads no model.

    Raises:
        Refusal: as admission would.
    """
    own_hub = hub()
    try:
        await own_hub.ready(BROKER_SECONDS)
        place = await placement.find_place(request.model, kind_of(request), strict=True)
        request = msgspec.structs.replace(request, frames=own_hub.channel)
        inbox = own_hub.open(request.id, place.host.name, place.host.instance)
        stream = Stream(request, place.host.name, own_hub, inbox)
        await _ask_count(place.host.name, encoded(request))
    except (*BROKER_ERRORS, TimeoutError):
        raise Refusal(503, *BROKER_DOWN, retry_after=2) from None
    try:
        await stream.admission(COUNT_SECONDS + (ADMISSION_SECONDS_WITH_PICTURES if request.pictures else 0.0))
        if stream.admitted is None:
            raise Refusal(503, "engine_unavailable", "Counting took too long. Try again.", retry_after=2)
        return stream.admitted.prompt_tokens
    finally:
        stream.detach()


async def _ask_count(host: str, body: bytes) -> None:

    await async_client().rpush(queues.control_key(host), control("count", body=body))
