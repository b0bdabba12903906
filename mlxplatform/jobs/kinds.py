"""The registry of job kinds: what can run, where, and by which policy. Filled by each app's ``AppConfig.ready()``.

The web process knows kinds too (to submit and to show them), so a kind names its runner by import path and
the module behind it is imported only where the job runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal


@dataclass(frozen=True)
class JobKind:
    """Policy of one kind of job.

    ``runner`` is ``module:function`` taking a JobContext and returning the result dict. ``ended``, if given,
    is ``module:function`` taking the Job, called inside the transaction that ends it, by whoever ends it: also
    for a job cancelled before it ever ran. It must only write SQL. ``concurrency`` 0 is no limit.
    """

    name: str
    runner: str
    queue: Literal["cpu", "gpujobs"] = "cpu"
    max_attempts: int = 3
    #: Owners that may die in a row without progress before the job is quarantined.
    max_deaths: int = 3
    pausable: bool = False
    concurrency: int = 0
    #: First retry delay and the longest one, seconds; doubled in between, with jitter.
    backoff_s: float = 5.0
    backoff_cap_s: float = 300.0
    title: str = ""
    ended: str = ""

    def retry_delay(self, attempt: int) -> float:
        """Seconds before attempt ``attempt + 1``; jittered so that jobs that failed together do not return together."""
        delay = min(self.backoff_s * 2 ** max(attempt - 1, 0), self.backoff_cap_s)
        return delay * random.uniform(0.5, 1.0)


class UnknownKind(LookupError):
    """No app registered a kind of this name."""


_kinds: dict[str, JobKind] = {}


def register(kind: JobKind) -> None:
    """Add a kind; registering the same one twice is harmless, two different ones under one name is a bug."""
    known = _kinds.setdefault(kind.name, kind)
    if known != kind:
        raise ValueError(f"two job kinds are called {kind.name}")


def get(name: str) -> JobKind:
    try:
        return _kinds[name]
    except KeyError:
        raise UnknownKind(name) from None


def names() -> list[str]:
    return sorted(_kinds)


def load(path: str) -> Callable[..., Any]:
    """The function behind ``module:function``."""
    module, _, function = path.partition(":")
    loaded: Callable[..., Any] = getattr(import_module(module), function)
    return loaded
