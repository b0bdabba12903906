"""Writing behind: what piled up in memory goes to the database every moment, on a thread of its own.

Knows nothing of what is written: ``flush`` writes all of it, may be called by anybody, and keeps what it could not write.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable

import structlog
from django.db import DatabaseError, connection

log = structlog.get_logger(__name__)


class WriteBehind:
    """Starts at the first :meth:`wake`, writes every ``seconds`` and once more when the process ends."""

    def __init__(self, name: str, flush: Callable[[], object], seconds: float) -> None:
        self._name, self._flush, self._seconds = name, flush, seconds
        self._lock = threading.Lock()
        self._started = False

    def wake(self) -> None:
        """Cheap; from any thread."""
        with self._lock:
            if self._started:
                return
            self._started = True
        threading.Thread(target=self._keep_writing, name=self._name, daemon=True).start()
        atexit.register(self._write)

    def _keep_writing(self) -> None:
        while True:
            time.sleep(self._seconds)
            self._write()

    def _write(self) -> None:
        try:
            self._flush()
        except DatabaseError as error:
            log.warning("not written yet", what=self._name, error=str(error))
        finally:
            connection.close()
