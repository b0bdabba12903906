"""Whatever breaks under a running batch, every line is answered once and nothing is left over.

The quick faults are tried one after the other on one platform in every test run; each by itself, the long ones, and
kills at random points (with recorded seeds) are drills.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable

import pytest
import redis

from mlxplatform.paths import broker_socket
from tests.system.batch_run import BatchRun
from tests.system.stack import ROOT, Stack, eventually

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

#: Largest file a process may write while its disk is "full", bytes: the database is larger at once.
NO_ROOM = 64 * 1024
#: Queues every message of which is put on its queue a second time, as a broker does that was unsure of an acknowledgement.
TWICE = """
from mlxplatform.broker import queues
from mlxplatform.broker.dramatiq_broker import enqueue
from mlxplatform.rows.models import RowChunk
from mlxplatform.jobs.models import Job
for chunk in RowChunk.objects.filter(state__in=["queued", "running"]):
    for fence in (chunk.fence, chunk.fence, chunk.fence - 1):
        enqueue(queues.rows(chunk.host), queues.RUN_CHUNK, chunk.id, fence)
for job in Job.objects.filter(state="running"):
    for _ in range(3):
        enqueue(job.queue, queues.RUN_JOB, job.id)
"""


def wiped_broker(stack: Stack) -> None:
    client = redis.Redis(unix_socket_path=str(broker_socket(stack.home)))
    client.flushall()
    client.close()


def killed_broker(stack: Stack) -> None:
    stack.kill_and_wait("broker")


def upgraded_workers(stack: Stack) -> None:
    """What an upgrade does: each worker is asked to end and a new one, perhaps of newer code, takes over."""
    begun = stack.logs("gpu").count("gpu.ready")
    for name in ("cpu", "gpu", "scheduler"):
        old = stack.kill(name, signal.SIGTERM)
        eventually(lambda name=name, old=old: stack.pids().get(name, old) != old, what=f"another {name}")
    eventually(lambda: stack.logs("gpu").count("gpu.ready") > begun, what="the new gpu process at work")


def locked_database(stack: Stack, seconds: float = 6.0) -> None:
    with sqlite3.connect(stack.home / "db.sqlite3", timeout=20, isolation_level=None) as link:
        link.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        link.execute("ROLLBACK")


def full_disk(stack: Stack, seconds: float = 6.0) -> None:
    before = {}
    for name in ("cpu", "gpu"):
        pid = stack.pids()[name]
        before[pid] = resource.prlimit(pid, resource.RLIMIT_FSIZE, (NO_ROOM, resource.RLIM_INFINITY))
    time.sleep(seconds)
    for pid, limits in before.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


def doubled_messages(stack: Stack) -> None:
    done = stack.manage("shell", "-c", TWICE)
    assert done.returncode == 0, done.stderr


def frozen(name: str, seconds: float) -> Callable[[Stack], None]:
    """Stopped for longer than its heartbeats may be missing, then awake again, with stale work in its hands."""

    def freeze(stack: Stack) -> None:
        pid = stack.kill(name, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)

    return freeze


def frozen_broker(stack: Stack, seconds: float = 20.0) -> None:
    (pid,) = [pid for pid, command in stack.descendants().items() if "valkey-server" in command and "workers" not in command]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


QUICK: dict[str, Callable[[Stack], None]] = {
    "messages delivered twice": doubled_messages,
    "broker wiped": wiped_broker,
    "database locked by another writer": locked_database,
    "workers upgraded": upgraded_workers,
    "broker killed": killed_broker,
}
LONG: dict[str, Callable[[Stack], None]] = {
    "database locked for longer than writers wait": lambda stack: locked_database(stack, 30),
    "rows' holder frozen past its heartbeats": frozen("gpu", 25),
    "job's holder frozen past its heartbeats": frozen("cpu", 35),
    "scheduler frozen": frozen("scheduler", 25),
    "broker frozen": frozen_broker,
}
if hasattr(resource, "prlimit"):  # a running process's limits can be set on Linux only
    QUICK["disk full"] = full_disk
    LONG["disk full for a minute"] = lambda stack: full_disk(stack, 60)


@pytest.fixture
def slow_stack(make_stack: Callable[..., Stack]) -> Stack:
    """Two answers at a time, so that a batch of some hundred short lines lasts long enough to break something under it."""
    return make_stack(MLXPLATFORM_SLOTS="2", MLXPLATFORM_ROW_SLOTS="2")


@pytest.mark.drill
def test_a_batch_survives_what_breaks_around_it(slow_stack: Stack) -> None:
    run = BatchRun(slow_stack, 1500)
    for name, fault in QUICK.items():
        run.get_on(name)
        fault(slow_stack)
    run.verify()


def test_a_batch_survives_each_process_dying_once(slow_stack: Stack) -> None:
    run = BatchRun(slow_stack, 900)
    for name in ("cpu", "engine", "gpu", "scheduler", "web"):
        run.get_on(f"killing {name}")
        slow_stack.kill_and_wait(name)
    run.verify()


@pytest.mark.drill
@pytest.mark.parametrize("name", [*QUICK, *LONG])
def test_a_batch_survives(slow_stack: Stack, name: str) -> None:
    run = BatchRun(slow_stack, 900)
    run.reach(60, name)
    {**QUICK, **LONG}[name](slow_stack)
    run.verify()


@pytest.mark.drill
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_a_batch_survives_kills_at_random_points(slow_stack: Stack, seed: int) -> None:
    chance = random.Random(seed)
    run = BatchRun(slow_stack, 900)
    for _ in range(8):
        time.sleep(chance.uniform(0.2, 4))
        name = chance.choice(["cpu", "gpu", "engine", "web", "scheduler", "broker", "wiped broker", "two at once"])
        if name == "wiped broker":
            wiped_broker(slow_stack)
        elif name == "two at once":
            slow_stack.kill("cpu")
            slow_stack.kill_and_wait("gpu")
        else:
            if name == "engine":  # whose gpu process may just have begun
                eventually(slow_stack.engine_pids, what="an engine to kill")
            slow_stack.kill_and_wait(name)
    run.verify()


def test_the_guides_demo_ends_whole(fresh_stack: Stack) -> None:
    environ = {**os.environ, "BASE": fresh_stack.base_url, "HOME_DIR": str(fresh_stack.home), "LINES": "400"}
    done = subprocess.run(
        ["sh", ROOT / "docs/guide/batch-demo.sh"], env=environ, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "whole"
    assert "killed gpu" in done.stdout and "killed web" in done.stdout and "chat: " in done.stdout
