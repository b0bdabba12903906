"""One sequence of the engine: its order, what it has emitted, and where it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from workers.engine.protocol import Start


@dataclass(slots=True, eq=False)
class Sequence:
    """``uid`` is the generator's number while it runs there, None while it waits.

    ``cache`` holds the KV of the first ``covered`` tokens while the sequence waits after a pre-emption or an
    aborted prefill. ``reused`` counts prompt tokens that came from the prefix cache at the first insertion.
    A copy of the cache is kept when prefill reaches ``boundary``. ``leads`` is set to the same while others that
    share this beginning wait for it instead of computing it again. ``rest`` counts tokens of the prompt not fed yet.
    ``failures`` counts failed steps it was part of and ``mark`` where it stood at the last; ``alone`` asks that
    nothing else runs beside it, since it may have caused them.
    """

    order: Start
    emitted: list[int] = field(default_factory=list)
    uid: int | None = None
    row: Any = None
    cache: list[Any] | None = None
    covered: int = 0
    reused: int | None = None
    boundary: int = 0
    leads: int = 0
    rest: int = 0
    decoding: bool = False
    alone: bool = False
    failures: int = 0
    mark: int = 0
    preempted: int = 0

    @property
    def seq(self) -> int:
        return self.order.seq

    @property
    def is_row(self) -> bool:
        return self.order.priority == "row"

    @property
    def tokens(self) -> list[int]:
        """Everything the model has to have seen before the next token."""
        return self.order.prompt + self.emitted

    @property
    def longest(self) -> int:
        """Tokens of KV it may come to hold."""
        return len(self.order.prompt) + self.order.max_tokens

    @property
    def tokens_left(self) -> int:
        return self.order.max_tokens - len(self.emitted)
