"""From a parsed request to its answer: place it, submit its choices, drive a renderer, count what was used.

Shared by every protocol. A protocol hands in an :class:`Asked` (the contract request plus what it must say back) and
a renderer; it never sees queues, hosts or inboxes. Admission errors surface as Refusal before any byte is sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
import structlog
from django.http import HttpRequest

from mlxplatform.api import pictures
from mlxplatform.api.fields import join_names
from mlxplatform.api.memory_tools import Rounds, Run
from mlxplatform.api.reckoning import Reckoning
from mlxplatform.http.sse import comment, heartbeat_seconds
from mlxplatform.inference import client
from mlxplatform.inference.client import Completion, Stream
from mlxplatform.inference.contract import Event, Failed, InferenceRequest, Message, Refusal, Usage, Waiting
from mlxplatform.inference.models import StoredAnswer
from mlxplatform.inference.placement import Place, find_place

log = structlog.get_logger(__name__)

IGNORED_HEADER = "x-mlxplatform-ignored"
#: With the value false (or 0) nothing of what is said is kept, in whatever protocol.
STORE_HEADER = "x-mlxplatform-store"


@dataclass(frozen=True)
class Asked:
    """A checked request of some protocol: one contract request per choice, their ``model`` still empty.

    Choices come in groups of ``n`` that share a prompt. ``model`` is the client's word for the model. ``one_call``:
    tool calls after the first are dropped. ``record`` False keeps nothing of what was said. ``memory``: the model may look
    things up in this vault, or the project's. ``extra`` is what the protocol's own renderer must remember.
    """

    requests: tuple[InferenceRequest, ...]
    model: str | None
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    ignored: tuple[str, ...] = ()
    one_call: bool = False
    store: bool = False
    metadata: dict[str, str] | None = None
    extra: Any = None
    record: bool = True
    memory: bool | str = False

    @property
    def request(self) -> InferenceRequest:
        return self.requests[0]


def choices_of(request: InferenceRequest, n: int, first: int = 0) -> list[InferenceRequest]:
    """The requests of ``n`` choices numbered from ``first``: an id each, and a seed each where one was given."""
    return [_choice(request, index, first + index) for index in range(n)]


def _choice(request: InferenceRequest, index: int, number: int) -> InferenceRequest:
    seed = request.sampling.seed
    sampling = request.sampling if seed is None else msgspec.structs.replace(request.sampling, seed=(seed + index) % 2**63)
    return msgspec.structs.replace(request, id=f"{request.id}-{number}" if number else request.id, sampling=sampling)


@dataclass(frozen=True)
class Call:
    """A placed request, ready to submit. ``created`` and ``began`` are Unix seconds; ``headers`` go on the answer."""

    asked: Asked
    requests: tuple[InferenceRequest, ...]
    model: str
    created: int
    headers: dict[str, str]
    project: str
    key_id: str
    path: str = ""
    began: float = 0.0
    #: Who asked, as the audit log names them.
    made_by: str = ""

    @property
    def id(self) -> str:
        return self.asked.request.id


async def place_call(http: HttpRequest, asked: Asked) -> Call:
    """Resolve the model.

    Raises:
        Refusal: unknown model, no engine.
    """
    began = time.time()
    if http.headers.get(STORE_HEADER, "").strip().lower() in {"false", "0"}:
        asked = replace(asked, record=False)
    project = getattr(http, "project", "default")
    place = await find_place(asked.model, client.kind_of(asked.request), project=project)
    asked = replace(asked, requests=await pictures.beside(place.model, asked.requests))
    identity, trace = getattr(http, "identity", None), getattr(http, "trace", "")
    return Call(
        asked=asked,
        requests=tuple(
            msgspec.structs.replace(request, model=place.model.id, project=project, trace=trace) for request in asked.requests
        ),
        model=place.model.id,
        created=int(began),
        headers=answer_headers(asked.model, place, asked.ignored),
        project=project,
        key_id=getattr(identity, "key_id", ""),
        path=http.path,
        began=began,
        made_by=getattr(identity, "actor", ""),
    )


def answer_headers(asked_model: str | None, place: Place, ignored: Sequence[str] = ()) -> dict[str, str]:
    headers: dict[str, str] = {}
    if place.substituted:
        asked = "".join(c for c in asked_model or "" if c.isascii() and c.isprintable() and c not in '"\\')[:60]
        headers["Warning"] = f"199 mlxplatform \"model '{asked}' is not on this server; '{place.model.id}' answers\""
    names = join_names(ignored)
    if names:
        headers[IGNORED_HEADER] = names
    return headers


def remembered_call(row: StoredAnswer, messages: list[Message], facts: Mapping[str, Any]) -> Call:
    """The call of a stored answer whose process died, as far as its reckoning needs it."""
    request = InferenceRequest(id=row.id, model=row.model, messages=messages)
    asked = Asked((request,), row.model, stream=True, store=True)
    began = float(facts.get("began") or row.created_at.timestamp())
    key_id, path = str(facts.get("key_id") or ""), str(facts.get("path") or "")
    return Call(asked, asked.requests, row.model, int(began), {}, row.project, key_id, path, began)


class Choices:
    """The streams of one call, read as one: (choice index, event) pairs in order of arrival."""

    def __init__(self, streams: Sequence[Stream | Rounds]) -> None:
        self.streams = streams
        self.finished = False
        self._open = len(streams)
        self._readers: dict[asyncio.Task[list[Event]], int] = {}

    @classmethod
    async def submit(cls, requests: Sequence[InferenceRequest], run: Run | None = None) -> Choices:
        """Submit all or none. With ``run`` the only choice may look things up in the memory first.

        Raises:
            Refusal: admission failed for one of them.
        """
        if run is not None:
            (request,) = requests
            return cls([await Rounds.submit(request, run)])
        results = await asyncio.gather(*(client.submit(request) for request in requests), return_exceptions=True)
        streams = [result for result in results if isinstance(result, Stream)]
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            for stream in streams:
                stream.stop("sibling_refused")
            raise next((failure for failure in failures if isinstance(failure, Refusal)), failures[0])
        return cls(streams)

    @property
    def prompt_tokens(self) -> int:
        admitted = self.streams[0].admitted
        return admitted.prompt_tokens if admitted else 0

    async def read(self, timeout: float) -> list[tuple[int, Event]]:
        """Events of any choice; empty after ``timeout`` seconds of silence."""
        if len(self.streams) == 1:
            stream = self.streams[0]
            events = await stream.read(timeout)
            self.finished = stream.finished
            return [(0, event) for event in events]
        for index, stream in enumerate(self.streams):
            if not stream.finished and index not in self._readers.values():
                self._readers[asyncio.create_task(stream.read())] = index
        done, _ = await asyncio.wait(self._readers, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        pairs = [(self._readers.pop(task), task.result()) for task in done]
        self.finished = all(stream.finished for stream in self.streams)
        return [(index, event) for index, events in sorted(pairs, key=lambda pair: pair[0]) for event in events]

    def stop(self, reason: str = "client_left") -> bool:
        """Cancel what still runs; whether anything did."""
        for task in self._readers:
            task.cancel()
        unfinished = [stream for stream in self.streams if not stream.finished]
        for stream in unfinished:
            stream.stop(reason)
        return bool(unfinished)


class Renderer(Protocol):
    """Events to frames of one protocol. ``failed`` is the last frame after an error; ``closing`` after success.

    ``opening`` goes out at once, before any token exists. An empty frame is not sent.
    """

    def opening(self) -> bytes: ...

    def event(self, index: int, event: Event) -> bytes: ...

    def heartbeat(self, waiting: Waiting | None) -> bytes: ...

    def failed(self, failed: Failed, used: Usage) -> bytes: ...

    def closing(self, used: Usage) -> bytes: ...


async def drive(call: Call, choices: Choices, renderer: Renderer) -> AsyncGenerator[bytes, None]:
    """The bytes of a streamed answer. Closing it early cancels the request within one decode step."""
    interval = heartbeat_seconds()
    reckoning = Reckoning(call)
    waiting: Waiting | None = None
    try:
        opening = renderer.opening()
        if opening:
            yield opening
        while not choices.finished:
            pairs = await choices.read(interval)
            if not pairs:
                beat = renderer.heartbeat(waiting)
                if beat:
                    yield beat
                continue
            frames: list[bytes] = []
            for index, event in pairs:
                if isinstance(event, Waiting):
                    waiting = event
                    continue
                if isinstance(event, Failed):
                    reckoning.event(
                        index, event if event.usage else msgspec.structs.replace(event, usage=Usage(choices.prompt_tokens))
                    )
                    log.warning("stream failed", request_id=call.id, code=event.code, status=event.status)
                    yield b"".join(frames) + renderer.failed(event, reckoning.usage())
                    return
                reckoning.event(index, event)
                frame = renderer.event(index, event)
                if frame:
                    frames.append(frame)
            if choices.finished:
                frames.append(renderer.closing(reckoning.usage()))
            if frames:
                yield b"".join(frames)
    finally:
        left = choices.stop()
        if left:
            log.info("request cancelled by client", request_id=call.id, status=499)
        await reckoning.close(cancelled=left)


async def gather(call: Call, choices: Choices) -> list[Completion]:
    """Every choice to its end.

    Raises:
        Refusal: one failed; the others are stopped.
    """
    tasks = [asyncio.ensure_future(client.collect(stream)) for stream in choices.streams]
    reckoning = Reckoning(call)
    left = True
    try:
        completions = await asyncio.gather(*tasks)
        for index, completion in enumerate(completions):
            reckoning.completion(index, completion)
        left = False
        return completions
    except Refusal as refusal:
        reckoning.failed(refusal.failed())
        raise
    finally:
        for task in tasks:
            task.cancel()
        choices.stop()
        await reckoning.close(cancelled=left)


#: The first bytes of a stream: a client or proxy with a byte timeout sees life before the first token.
STREAM_BEGINS = comment("stream")


def waiting_comment(waiting: Waiting | None) -> bytes:
    """A heartbeat as a comment that says what is waited for."""
    if waiting is None:
        return comment()
    eta = "" if waiting.eta_s is None else f" eta={waiting.eta_s:.0f}s"
    return comment(f"waiting for {waiting.reason} position={waiting.position}{eta}")
