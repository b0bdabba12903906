"""The sandbox for model-written code, tried for real: what runs, what is bounded, and what it cannot reach.

Where a machine has no sandbox, what is shown is that nothing runs at all.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlxplatform.datasets import sandbox
from mlxplatform.datasets.sandbox import Verdict
from mlxplatform.datasets.templates.verified_code import asserts_something


def verify(code: str, monkeypatch: pytest.MonkeyPatch | None = None) -> Verdict | None:
    """The verdict; None where there is no sandbox, once it is clear that the code did not run."""
    verdict = asyncio.run(sandbox.verify(code))
    if sandbox.kind_here():
        return verdict
    assert verdict == Verdict("unverified", "no-sandbox")
    return None


def expect(code: str, outcome: str, words: str = "") -> None:
    verdict = verify(code)
    if verdict is not None:
        assert verdict.outcome == outcome and words in f"{verdict.reason} {verdict.error}", verdict


def test_code_that_holds_is_verified_and_code_that_does_not_is_not() -> None:
    expect("def add(a, b):\n    return a + b\nassert add(1, 2) == 3\n", "verified")
    expect("assert 1 == 2, 'no such luck'\n", "failed", "no such luck")
    expect("this is no python\n", "failed", "SyntaxError")
    expect("raise SystemExit(3)\n", "failed", "exit 3")


@pytest.fixture
def listener() -> Iterator[tuple[int, list[bool]]]:
    """A port on this machine that notes whether anybody came."""
    came: list[bool] = []
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0.2)
        ending = threading.Event()

        def listen() -> None:
            while not ending.is_set():
                try:
                    server.accept()[0].close()
                    came.append(True)
                except TimeoutError:
                    continue

        thread = threading.Thread(target=listen)
        thread.start()
        yield server.getsockname()[1], came
        ending.set()
        thread.join()


def test_there_is_no_network(listener: tuple[int, list[bool]]) -> None:
    port, came = listener
    with socket.create_connection(("127.0.0.1", port)):
        pass
    while not came:
        time.sleep(0.01)
    came.clear()
    expect(
        f"import socket\ntry:\n    socket.create_connection(('127.0.0.1', {port}), 2)\n"
        "except OSError:\n    pass\nelse:\n    raise AssertionError('reached the host')\n",
        "verified",
    )
    expect("import socket\nassert [name for _, name in socket.if_nameindex()] in (['lo'], [])\n", "verified")
    assert not came


def test_nothing_can_be_written_and_nothing_private_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the token")
    tmp_path.chmod(0o755)
    expect(
        f"""
import os
for place in ("/", "/tmp", "/dev", "/dev/shm", "/usr", "/var", os.getcwd(), {str(tmp_path)!r}):
    try:
        open(os.path.join(place, "mine"), "w")
    except OSError:
        continue
    raise AssertionError("wrote into " + place)
for path in ({str(secret)!r}, "/etc/passwd", "/etc/shadow", "/root", "/home"):
    assert not os.path.exists(path), path
assert os.getuid() not in (0, {os.getuid()} or 0), os.getuid()
assert not [name for name in os.environ if name not in ("PWD", "LC_CTYPE")], dict(os.environ)
assert len([name for name in os.listdir("/proc") if name.isdigit()]) < 6, "sees the processes of others"
""",
        "verified",
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret"]


def test_memory_is_bounded() -> None:
    expect("x = bytearray(300 * 1024 * 1024)\n", "failed", "MemoryError")


def test_a_fork_bomb_is_stopped_and_leaves_nothing() -> None:
    expect(
        """
import os
made = 0
try:
    while made < 200:
        if os.fork() == 0:
            os.read(0, 1)
            while True:
                pass
        made += 1
except OSError:
    assert made < 64, made
else:
    raise AssertionError("nothing stopped it")
""",
        "verified",
    )


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("while True:\n    pass\n", "timeout"),
        ("import time\ntime.sleep(100)\n", "timeout"),
        ("import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n", "timeout"),
        ("while True:\n    print('x' * 10_000)\n", "output-overflow"),
    ],
)
def test_what_does_not_end_is_ended(code: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "CLOCK_SECONDS", 2)
    expect(code, "unverified", reason)


def test_used_up_processor_time_is_no_failure_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    outside = sandbox._OUTSIDE.replace(f"({sandbox.RUN_SECONDS}, {sandbox.RUN_SECONDS + 1})", "(1, 2)")
    assert outside != sandbox._OUTSIDE
    monkeypatch.setattr(sandbox, "_OUTSIDE", outside)
    expect("while True:\n    pass\n", "unverified", "timeout")


def test_without_a_sandbox_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox.kind_here.cache_clear()
    try:
        assert "needs a sandbox" in (sandbox.why_unavailable() or "")
        assert asyncio.run(sandbox.verify(f"open({str(tmp_path / 'ran')!r}, 'w')")) == Verdict("unverified", "no-sandbox")
        assert not (tmp_path / "ran").exists()
    finally:
        sandbox.kind_here.cache_clear()


def test_a_sandbox_that_fails_its_trial_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'no permission to make namespaces' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for cached in (sandbox.kind_here, sandbox._interpreter):
        cached.cache_clear()
    try:
        assert sandbox.kind_here() in ("", "sandbox-exec")
    finally:
        for cached in (sandbox.kind_here, sandbox._interpreter):
            cached.cache_clear()


def test_code_without_assertions_shows_nothing() -> None:
    assert asserts_something("def f():\n    return 1\nassert f() == 1") and asserts_something("def broken(:")
    assert not asserts_something("def f():\n    return 1\nprint(f())  # assert")


def test_assertions_that_are_not_run_show_nothing() -> None:
    inside = "def f(a):\n    assert a == 3\n    return a\n"
    assert not asserts_something(inside) and asserts_something(inside + "f(3)")
    assert not asserts_something("class T:\n    def test(self):\n        assert f() == 1\n")
    assert asserts_something("def f():\n    return 1\ndef test():\n    assert f() == 1\ntest()")
    assert asserts_something("def f():\n    return 1\nx = f()\nfor n in (1,):\n    assert x == n")
    assert not asserts_something("def f():\n    return 1\nassert True")
