"""The lifeline ends a child whose parent is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from workers.guard import Lifeline

ROOT = Path(__file__).resolve().parents[2]
#: Says when it watches, then sleeps for ever.
CHILD = "from workers.guard import end_with_parent as e; e(); print('up', flush=True)\nimport time\nwhile True: time.sleep(60)"
#: Ignores the polite signal.
STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "from workers.guard import end_with_parent as e; e(grace=0.1); print('up', flush=True)\n"
    "import time\nwhile True: time.sleep(60)"
)


def start(code: str, lifeline: Lifeline) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **lifeline.environment()},
        pass_fds=(lifeline.read_fd,),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    return child


def test_a_child_ends_when_the_write_end_closes() -> None:
    lifeline = Lifeline()
    child = start(CHILD, lifeline)
    lifeline.close()
    assert child.wait(10) == -15


def test_a_child_that_ignores_the_polite_signal_ends_after_the_grace() -> None:
    lifeline = Lifeline()
    child = start(STUBBORN, lifeline)
    lifeline.close()
    assert child.wait(10) == 1


def test_a_grandchild_does_not_keep_the_pipe_open() -> None:
    lifeline = Lifeline()
    child = start(CHILD, lifeline)
    other = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, close_fds=False)
    try:
        lifeline.close()
        assert child.wait(10) == -15
    finally:
        other.kill()
        other.wait()
