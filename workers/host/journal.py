"""The journal: what one running request was asked and what it has answered, in the supervisor's memory.

An engine child may die at any moment; prompt ids, emitted ids and the text layer's state live here, so a new
child continues where the old one stopped and the client sees a pause. Turning tokens into text happens here
as well, which keeps the child's main thread free for the model.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from mlxplatform.inference.contract import Event, Failed, Finished, InferenceRequest, TokenLogprob, Usage
from workers.engine.detokenize import token_bytes
from workers.engine.protocol import Start, Token
from workers.engine.text import TextLayer
from workers.prepare.protocol import Prepared

_numbers = itertools.count(1)


def new_number() -> int:
    """A sequence number no engine child of this process was ever told."""
    return next(_numbers)


Sink = Callable[[list[Event]], None]


@runtime_checkable
class Follows(Protocol):
    """A sink that wants to know the tokens behind the events."""

    def follow(self, emitted: list[int]) -> None:
        """The list that will grow by each token of the request."""


#: A token that cannot be chosen has log-probability -inf, which JSON cannot carry.
LOGPROB_FLOOR = -9999.0


@dataclass(eq=False)
class Entry:
    """One request from admission to its last event.

    ``room`` is how many tokens the memory budget leaves for the answer, None for no limit. ``deaths`` counts
    engine deaths while it ran; ``mark`` is how many tokens it had emitted at the last one.
    """

    seq: int
    request: InferenceRequest
    prepared: Prepared
    tokenizer: Any
    sink: Sink
    adapters: dict[str, Path] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)
    emitted: list[int] = field(default_factory=list)
    cached: int = 0
    prefilled: int = 0
    admitted: bool = False
    room: int | None = None
    position: int = 0
    deaths: int = 0
    mark: int = 0
    outcome: Finished | Failed | None = None
    created: float = field(default_factory=time.monotonic)
    first_token: float | None = None
    text: TextLayer = field(init=False)
    #: Taken up again after another process died with it: its client has been told that it is admitted.
    resumed: bool = field(init=False)

    def __post_init__(self) -> None:
        self.text = TextLayer(self.tokenizer, self.prepared.text)
        for token in self.emitted:  # said by an earlier process, and delivered
            self.text.push(token)
        self.resumed = bool(self.emitted)

    @property
    def is_row(self) -> bool:
        return self.request.priority == "row"

    @property
    def waits(self) -> bool:
        """Admitted, and neither prefilled nor answered at all yet."""
        return self.admitted and self.outcome is None and not self.prefilled and not self.emitted

    def start_order(self) -> Start:
        """The order that makes an engine run the rest of this request."""
        prepared, request = self.prepared, self.request
        return Start(
            seq=self.seq,
            prompt=prepared.prompt_ids,
            emitted=list(self.emitted),  # packed later, by another thread
            max_tokens=prepared.max_tokens if self.room is None else min(prepared.max_tokens, self.room),
            priority=request.priority,
            eos=prepared.stop_ids,
            sampling=prepared.sampling,
            logprobs=request.logprobs,
            grammar=prepared.text if prepared.text.grammar else None,
            boundary=prepared.boundary,
            adapter=request.adapter,
            protected=self.tokenizer.encode("\n", add_special_tokens=False).ids,
            pictures=prepared.pictures,
        )

    @property
    def usage(self) -> Usage:
        return Usage(len(self.prepared.prompt_ids), len(self.emitted), self.cached, self.text.reasoning_tokens)

    def take(self, token: Token) -> tuple[list[Event], str | None]:
        """Record one emitted token; answers its events and the stop string that it completed, if any."""
        if self.first_token is None:
            self.first_token = time.monotonic()
        self.emitted.append(token.id)
        return self.text.push(token.id, self._logprob(token))

    def take_run(self, ids: list[int]) -> tuple[list[Event], str | None]:
        """The same for tokens that came together. Those behind a stop string were decoded for nothing and do not count."""
        events: list[Event] = []
        if self.first_token is None:
            self.first_token = time.monotonic()
        for token in ids:
            self.emitted.append(token)
            said, stop = self.text.push(token)
            events += said
            if stop is not None:
                return events, stop
        return events, None

    def finish(self, reason: Any, stop: str | None = None) -> list[Event]:
        """The last events. Sets the outcome; the caller delivers and then sets ``done``."""
        events, settled = self.text.finish(reason)
        self.outcome = Finished(settled, self.usage, stop)
        return [*events, self.outcome]

    def fail(self, failed: Failed) -> list[Event]:
        self.outcome = Failed(
            failed.code, failed.message, failed.status, failed.param, failed.retry_after, self.usage if self.emitted else None
        )
        return [self.outcome]

    def _logprob(self, token: Token) -> TokenLogprob | None:
        if token.logprob is None:
            return None
        top = [(i, self._text_of(i), max(value, LOGPROB_FLOOR)) for i, value in token.top or []]
        return TokenLogprob(token.id, self._text_of(token.id), max(token.logprob, LOGPROB_FLOOR), top)

    def _text_of(self, token: int) -> str:
        # Not the library's decode: it drops the space in front of a word that stands alone.
        return token_bytes(self.tokenizer).text(token)
