"""How often the threads of a process take turns.

A thread that comes back from a socket waits for whoever computes to let go: up to Python's 5 ms, several times for each
request, in each process on its way. Half a millisecond costs nothing measurable and takes most of that wait away.
"""

from __future__ import annotations

import sys

#: Seconds a thread may compute while another one waits.
SWITCH_SECONDS = 0.0005


def take_short_turns() -> None:
    sys.setswitchinterval(SWITCH_SECONDS)
