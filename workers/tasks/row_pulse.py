"""The heartbeat of the chunks this process runs, in a thread of its own that no prompt can hold up.

Preparing one long prompt may take longer than a silent owner is given, so the thread that runs a chunk cannot be
the one that beats for it. Two statements each half second serve every chunk of the process: which of them are still
ours, and, every other second, a sign of life. What was cancelled or given away is told to its run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from django.db import Error as DatabaseTrouble
from django.db import connection

from mlxplatform.rows import chunks

log = structlog.get_logger(__name__)

#: Seconds between looks whether chunks are still ours: the largest part of a row's cancel latency.
CHECK_SECONDS = 0.5
#: Looks between heartbeats, i.e. one every 2 s: a fifth of the time after which a silent owner is dead.
LOOKS_PER_BEAT = 4

Held = tuple[str, int]


class ChunkPulse:
    """One per process. Its thread lives while there are chunks, so that an idle process holds no connection."""

    def __init__(self) -> None:
        self._runs: dict[Held, Callable[[], None]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @contextmanager
    def beating(self, chunk: str, fence: int, lost: Callable[[], None]) -> Iterator[None]:
        """Beat for a claimed chunk; ``lost`` is called, from the pulse's thread, when it is not ours any more."""
        with self._changed:
            self._runs[chunk, fence] = lost
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="chunk-pulse", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._changed:
                del self._runs[chunk, fence]
                self._changed.notify()

    def _run(self) -> None:
        looks = 0
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: not self._runs, CHECK_SECONDS)
                    if not self._runs:
                        self._thread = None
                        return
                    runs = dict(self._runs)
                looks += 1
                self._look(runs, beat=looks % LOOKS_PER_BEAT == 0)
        finally:
            connection.close()

    def _look(self, runs: dict[Held, Callable[[], None]], *, beat: bool) -> None:
        try:
            if beat:
                chunks.beat(runs.keys())
            held = chunks.held_among(runs.keys())
        except DatabaseTrouble as error:
            log.warning("rows.beat_missed", chunks=len(runs), error=type(error).__name__)
            connection.close()
            return
        for gone in runs.keys() - held:
            runs[gone]()


pulse = ChunkPulse()
