"""What a call used and what it answered, for the key's quota, the usage ledger and the history.

A protocol tells a :class:`Reckoning` every event of its call and closes it once, however the call ended. It renders
nothing and decides nothing about the answer; a broker or database that is down does not spoil an answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
from django.conf import settings

from mlxplatform.accounts import quotas, usage
from mlxplatform.api import pictures
from mlxplatform.broker.connections import BROKER_ERRORS
from mlxplatform.inference import request_log
from mlxplatform.inference.client import Completion
from mlxplatform.inference.contract import Event, Failed, Finished, InferenceRequest, Reasoning, Text, ToolCall, Usage
from mlxplatform.inference.request_log import Content, Ended, Outcome, Said

if TYPE_CHECKING:
    from mlxplatform.api.running import Call

log = structlog.get_logger(__name__)

#: Kinds of requests of which what was said is worth keeping.
SPOKEN = {"chat", "completion"}


class Tally:
    """Usage over the choices of a call; a prompt counts once for the ``n`` choices that share it."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._prompts: dict[int, Usage] = {}
        self._completion = 0
        self._reasoning = 0

    def add(self, index: int, used: Usage) -> None:
        self._prompts.setdefault(index // self._n, used)
        self._completion += used.completion
        self._reasoning += used.reasoning

    def usage(self) -> Usage:
        shared = self._prompts.values()
        return Usage(sum(used.prompt for used in shared), self._completion, sum(used.cached for used in shared), self._reasoning)


def total(completions: Sequence[Completion], n: int) -> Usage:
    tally = Tally(n)
    for index, completion in enumerate(completions):
        tally.add(index, completion.usage)
    return tally.usage()


@dataclass
class _Answer:
    """One choice as it is written."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    finish: str = ""

    def said(self) -> Said:
        return Said("".join(self.text), "".join(self.reasoning), self.calls, self.finish)


class Reckoning:
    """The reckoning of one call. ``live``: its events are told as they come, so the first one's time means something."""

    def __init__(self, call: Call, *, live: bool = True) -> None:
        self._call = call
        self._live = live
        self._tally = Tally(call.asked.n)
        self._answers: dict[int, _Answer] = {}
        self._first_at: float | None = None
        self._failed: Failed | None = None
        self._closed = False

    def event(self, index: int, event: Event) -> None:
        kind = type(event)
        if kind is Text:
            self._answer(index).text.append(event.text)  # type: ignore[union-attr]
        elif kind is Reasoning:
            self._answer(index).reasoning.append(event.text)  # type: ignore[union-attr]
        elif kind is ToolCall:
            self._answer(index).calls.append(event)  # type: ignore[arg-type]
        elif isinstance(event, Finished):
            self._answer(index).finish = event.reason
            self._tally.add(index, event.usage)
        elif isinstance(event, Failed):
            self._failed = event
            if event.usage is not None:
                self._tally.add(index, event.usage)

    def events(self, events: Iterable[Event]) -> None:
        """All events of a call with one choice."""
        for event in events:
            self.event(0, event)

    def completion(self, index: int, answer: Completion) -> None:
        """A whole answer at once."""
        self._answers[index] = _Answer([answer.text], [answer.reasoning], answer.tool_calls, answer.finish_reason)
        self._tally.add(index, answer.usage)

    def _answer(self, index: int) -> _Answer:
        found = self._answers.get(index)
        if found is None:
            found = self._answers[index] = _Answer()
            if self._first_at is None and self._live:
                self._first_at = time.time()
        return found

    def failed(self, failed: Failed) -> None:
        self._failed = failed

    def usage(self) -> Usage:
        return self._tally.usage()

    async def close(self, *, cancelled: bool = False) -> None:
        """Count and record; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        call, used = self._call, self._tally.usage()
        await pictures.forget(call.asked.request)
        request_log.add(self._ended(used, cancelled))
        if not used.prompt and not used.completion:
            return
        usage.add(call.project, call.key_id, call.model, used)
        if call.key_id:
            try:
                await quotas.spend(call.key_id, used.prompt + used.completion)
            except BROKER_ERRORS as error:
                log.warning("quota not counted", error=str(error))

    def _ended(self, used: Usage, cancelled: bool) -> Ended:
        call = self._call
        outcome = self._outcome(cancelled)
        well = outcome in {Outcome.COMPLETED, Outcome.INCOMPLETE}
        return Ended(
            id=call.id,
            path=call.path,
            project=call.project,
            key_id=call.key_id,
            model=call.model,
            outcome=outcome,
            usage=used,
            duration_s=max(time.time() - call.began, 0.0),
            stream=call.asked.stream,
            error_code=self._failed.code if self._failed is not None else "",
            first_token_s=None if self._first_at is None else max(self._first_at - call.began, 0.0),
            content=self._content() if well and call.asked.record and settings.ENV.store else None,
        )

    def _outcome(self, cancelled: bool) -> str:
        if self._failed is not None:
            return Outcome.CANCELLED if self._failed.status == 499 else Outcome.FAILED
        if cancelled:
            return Outcome.CANCELLED
        cut = any(answer.finish == "length" for answer in self._answers.values())
        return Outcome.INCOMPLETE if cut else Outcome.COMPLETED

    def _content(self) -> Content | None:
        request: InferenceRequest = self._call.asked.request
        if request.kind not in SPOKEN:
            return None
        prompt = request.prompt if isinstance(request.prompt, str) else None
        said = [answer.said() for _, answer in sorted(self._answers.items())]
        return Content(list(request.messages), prompt, said)
