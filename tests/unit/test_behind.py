"""Writing behind: once started it keeps writing, also after a database that could not be written."""

from __future__ import annotations

import threading

from django.db import DatabaseError

from mlxplatform.behind import WriteBehind


def test_a_database_that_fails_is_tried_again() -> None:
    tries, written = [], threading.Event()

    def flush() -> None:
        tries.append(threading.current_thread().name)
        if len(tries) == 1:
            raise DatabaseError("locked")
        written.set()

    behind = WriteBehind("ledger", flush, 0.001)
    assert tries == [], "nothing is written before there is something to write"
    behind.wake()
    behind.wake()
    assert written.wait(10)
    assert set(tries) == {"ledger"}
    assert sum(thread.name == "ledger" for thread in threading.enumerate()) == 1
