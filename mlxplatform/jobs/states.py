"""The states of a job and the table of legal moves between them. Data only: no Django, no I/O.

::

    queued ──► running ──► done
      ▲  │       │  ▲ └──► failed ──► queued     (a person retries)
      │  │       │  └► waiting                   (for the lease, still owned; or for a dependency, not owned)
      │  │       ├───► paused ──► queued
      │  │       ├───► cancelling ──► cancelled
      │  │       └───► zombie ──► queued | failed (its owner died; the sweeper decides)
      └──┴─ released by a worker that shuts down

A job is *owned* while a worker process runs it. Only its owner may write, proven by owner and fence.
"""

from __future__ import annotations

QUEUED, WAITING, RUNNING, PAUSED, CANCELLING = "queued", "waiting", "running", "paused", "cancelling"
DONE, FAILED, CANCELLED, ZOMBIE = "done", "failed", "cancelled", "zombie"

STATES = (QUEUED, WAITING, RUNNING, PAUSED, CANCELLING, DONE, FAILED, CANCELLED, ZOMBIE)

#: Nothing happens to these any more unless a person retries.
TERMINAL = frozenset({DONE, FAILED, CANCELLED})

#: States in which a worker may own the job ("waiting" only while it waits for the lease in mid-run).
LIVE = frozenset({RUNNING, WAITING, CANCELLING})

#: The only legal moves.
MOVES: dict[str, frozenset[str]] = {
    QUEUED: frozenset({RUNNING, WAITING, PAUSED, CANCELLED, FAILED}),
    WAITING: frozenset({QUEUED, RUNNING, PAUSED, CANCELLING, CANCELLED, FAILED, ZOMBIE}),
    RUNNING: frozenset({DONE, FAILED, WAITING, PAUSED, CANCELLING, CANCELLED, ZOMBIE, QUEUED}),
    PAUSED: frozenset({QUEUED, WAITING, CANCELLED, FAILED}),
    CANCELLING: frozenset({CANCELLED, DONE, FAILED}),
    ZOMBIE: frozenset({QUEUED, FAILED, CANCELLED}),
    DONE: frozenset(),
    FAILED: frozenset({QUEUED}),
    CANCELLED: frozenset({QUEUED}),
}

#: The event each move writes; a move not named here writes ``state``.
EVENT_OF = {RUNNING: "started", DONE: "done", FAILED: "failed", CANCELLED: "cancelled"}

#: Event types after which a stream of the job ends, until somebody retries it.
TERMINAL_EVENTS = frozenset({"done", "failed", "cancelled"})
