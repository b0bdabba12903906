"""Memory tools for a conversation that asks for them: offered to the model, run here, out of the client's sight.

A chat, response or message opts in with the field ``memory`` (or the header, for clients that cannot add a field). The
model then sees the read-only tools of one vault beside the client's own. While it calls memory tools only, they are run and
the chat goes on with their answers; the client gets one answer, as if there had been one request. Knows nothing of
frames: :class:`Rounds` reads like the stream of one request, for streamed answers and whole ones alike.

What a tool returns is text that conversations may have put there: it goes to the model as a tool's answer, marked
as quoted, and can do nothing but be read.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import structlog
from asgiref.sync import sync_to_async
from django.http import HttpRequest

from mlxplatform.api.fields import wrong_type, wrong_value
from mlxplatform.inference import client
from mlxplatform.inference.client import Stream
from mlxplatform.inference.contract import (
    Admitted,
    Constraint,
    Event,
    Failed,
    Finished,
    InferenceRequest,
    Message,
    Refusal,
    Text,
    Tool,
    ToolCall,
    Usage,
)
from mlxplatform.memory import tools
from mlxplatform.memory.models import Vault
from mlxplatform.memory.orders import find_vault

log = structlog.get_logger(__name__)

#: Opts in like the field does, for clients that can set a header but no field: a vault's name, or true.
HEADER = "x-mlxplatform-memory"
#: Times the model may look things up before it has to answer with what it has.
MOST_ROUNDS = 6
#: Calls of one round that are run; small models repeat themselves.
MOST_CALLS = 8
#: Characters of one tool's answer that go into the window.
ANSWER_LIMIT = 6000
#: The tools a chat is offered: few, since every one costs a small model's window about a hundred tokens.
OFFERED = ("memory_resolve", "memory_read", "memory_section", "memory_links", "memory_search", "memory_list")

Run = Callable[[str, Any], Any]


def read_memory(raw: Any, param: str) -> bool | str:
    """The field: true, false, or the name of a vault."""
    if isinstance(raw, bool) or (isinstance(raw, str) and raw):
        return raw
    raise wrong_type(param, "true, false or the name of a vault", raw)


def with_header(http: HttpRequest, body: dict[str, Any]) -> dict[str, Any]:
    """The body, with what the header says where the field is absent."""
    sent = http.headers.get(HEADER, "").strip()
    if not sent or body.get("memory") is not None:
        return body
    return {**body, "memory": {"false": False, "0": False, "true": True, "1": True}.get(sent.lower(), sent)}


async def run_for(http: HttpRequest, asked: bool | str) -> Run | None:
    """Runs the tools on the vault a request asked for, one of its project's; None when it asked for none.

    Raises:
        Refusal: 404 naming the field.
    """
    if not asked:
        return None
    name = asked if isinstance(asked, str) else None
    return runner(await sync_to_async(find_vault)(name, getattr(http, "project", "default"), "memory"))


def beside(own: list[Tool], param: str = "tools[{}]") -> list[Tool]:
    """The client's own tools and the memory's. ``param`` is how the protocol names one of the client's.

    Raises:
        Refusal: the client has one of the same name.
    """
    for place, tool in enumerate(own):
        if tool.name in OFFERED:
            raise wrong_value(param.format(place), f"'{tool.name}' is a memory tool; rename yours or leave 'memory' out.")
    return [*own, *(Tool(tools.TOOLS[name].name, tools.TOOLS[name].description, tools.TOOLS[name].schema()) for name in OFFERED)]


def guided(messages: list[Message]) -> list[Message]:
    """The conversation with a word on how the tools are meant."""
    if messages and messages[0].role == "system":
        first = messages[0]
        return [msgspec.structs.replace(first, content=f"{first.content or ''}\n\n{tools.GUIDE}".strip()), *messages[1:]]
    return [Message("system", tools.GUIDE), *messages]


def refuse_fixed_form(constraint: Constraint | None) -> None:
    """Refuse to look things up for an answer whose form is fixed.

    Raises:
        Refusal: 400 naming the field.
    """
    if constraint is not None and constraint.kind != "tool_call":
        raise wrong_value(
            "memory", "it cannot be combined with a fixed form of the answer, which leaves no room to look things up."
        )


def runner(vault: Vault) -> Run:
    """Runs a tool on this vault; what the model did wrong is told to the model."""

    def run(name: str, arguments: str) -> str:
        try:
            value = tools.call(vault, name, msgspec.json.decode(arguments or "{}"))
        except (msgspec.DecodeError, RecursionError):
            return "the arguments are not JSON"
        except Refusal as refusal:
            return refusal.message
        told = msgspec.json.encode(value).decode()
        return told if len(told) <= ANSWER_LIMIT else told[:ANSWER_LIMIT] + "… (cut; read one section instead)"

    return run


class Rounds:
    """One chat over several requests of the engine, read like a single stream."""

    def __init__(self, stream: Stream, run: Run) -> None:
        self.request = stream.request
        self.id = stream.id
        self.host = stream.host
        self.admitted = stream.admitted
        self.finished = False
        self.seq = 0
        self._stream = stream
        self._run = run
        self._own = {tool.name for tool in stream.request.tools} & set(OFFERED)
        self._round = 0
        self._used = Usage()
        self._text: list[str] = []
        self._calls: list[ToolCall] = []
        self._others: list[ToolCall] = []

    @classmethod
    async def submit(cls, request: InferenceRequest, run: Run) -> Rounds:
        """Start the first round.

        Raises:
            Refusal: as any submission.
        """
        return cls(await client.submit(request), run)

    async def read(self, timeout: float | None = None, *, merged: bool = True) -> list[Event]:
        """The next events that are the client's; empty after ``timeout`` seconds of silence or at the end."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.finished:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            events = await self._stream.read(left, merged=merged)
            if not events and (deadline is not None or self._stream.finished):
                self.finished = self._stream.finished
                return []
            shown: list[Event] = []
            for event in events:
                shown += await self._take(event)
            if shown:
                self.seq += len(shown)
                return shown
        return []

    async def _take(self, event: Event) -> list[Event]:
        """What of an event the client sees."""
        match event:
            case Admitted():
                self.admitted = self.admitted or event
                return [event] if self._round == 0 else []
            case Text():
                self._text.append(event.text)
                return [event]
            case ToolCall():
                (self._calls if event.name in self._own else self._others).append(event)
                return []
            case Finished():
                return await self._end_round(event)
            case Failed():
                self.finished = True
                return [msgspec.structs.replace(event, usage=_sum(self._used, event.usage or Usage()))]
        return [event]

    async def _end_round(self, end: Finished) -> list[Event]:
        self._used = _sum(self._used, end.usage)
        if self._calls and not self._others and end.reason == "tool_calls":
            return await self._next_round()
        self.finished = True
        # Calls of the client's own tools go first: the lookups can be asked for again with their results at hand.
        reason = "stop" if end.reason == "tool_calls" and not self._others else end.reason
        return [*self._others, Finished(reason, self._used, end.stop_sequence)]

    async def _next_round(self) -> list[Event]:
        calls = self._calls[:MOST_CALLS]
        said = Message("assistant", "".join(self._text) or None, tool_calls=calls)
        answers = []
        for call in calls:
            answer = await sync_to_async(self._run)(call.name, call.arguments)
            answers.append(Message("tool", answer, name=call.name, tool_call_id=call.id))
        self._round += 1
        log.info("memory looked up", request_id=self.id, round=self._round, tools=[call.name for call in calls])
        before = self._stream.request
        left = [tool for tool in before.tools if tool.name not in self._own] if self._round >= MOST_ROUNDS else before.tools
        # A call that the client demanded has been made; from here on the model is free.
        demanded = before.constraint is not None and before.constraint.kind == "tool_call"
        request = msgspec.structs.replace(
            before,
            id=f"{self.id}-m{self._round}",
            messages=[*before.messages, said, *answers],
            tools=left,
            tool_choice="auto",
            constraint=None if demanded else before.constraint,
            frames="",
        )
        self._text, self._calls = [], []
        try:
            self._stream = await client.submit(request)
        except Refusal as refusal:
            self.finished = True
            return [msgspec.structs.replace(refusal.failed(), usage=self._used)]
        return []

    def __aiter__(self) -> AsyncIterator[list[Event]]:
        return self._batches()

    async def _batches(self) -> AsyncIterator[list[Event]]:
        while not self.finished:
            yield await self.read()

    def stop(self, reason: str = "client_left") -> None:
        """Cancel the round under way."""
        self.finished = True
        self._stream.stop(reason)


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(
        one.prompt + other.prompt, one.completion + other.completion, one.cached + other.cached, one.reasoning + other.reasoning
    )
