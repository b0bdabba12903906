"""The real platform for tests: the supervisor and everything it starts, on a free port in a private data directory.

    with Stack(home) as stack:
        stack.openai().chat.completions.create(...)
        stack.kill("gpu")          # kill -9; the supervisor starts it again
        stack.logs("gpu")

It knows how to start, ask, kill and read; it asserts nothing about answers.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx
import psycopg

from tests.fixtures import tiny_model

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
#: The tiny model's id in the data directories made here.
MODEL = "tiny"
#: Seconds a start may take on a busy two-core machine before the test fails with the logs.
START_TIMEOUT = 90.0
#: Seconds an orderly end may take.
STOP_TIMEOUT = 30.0
#: Seconds most conditions are waited for.
PATIENCE = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def clean_environment(home: Path, **more: str) -> dict[str, str]:
    """This process's environment without settings of the platform, but with ``home`` and ``more``."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MLXPLATFORM_") and name not in {"PORT", "MODEL", "REDIS_URL", "DATABASE_URL"}
    }
    return {**kept, "MLXPLATFORM_HOME": str(home), "PYTHONPATH": str(ROOT), **more}


def prepared_home(home: Path) -> Path:
    """A data directory with tables, static files and the trained tiny model, but no starter model."""
    tiny_model.install(home, MODEL, steps=tiny_model.TRAINED_STEPS)
    environ = clean_environment(home, MLXPLATFORM_MODEL=MODEL, DJANGO_SETTINGS_MODULE="mlxplatform.settings")
    subprocess.run([sys.executable, "-m", "django", "prepare"], env=environ, cwd=ROOT, check=True, capture_output=True)
    return home


def eventually(condition: Callable[[], T], *, seconds: float = PATIENCE, what: str = "the condition") -> T:
    """Wait for ``condition`` to be true and return its value; fail with the last error otherwise."""
    deadline = time.monotonic() + seconds
    last: Exception | None = None
    while True:
        try:
            if value := condition():
                return value
            last = None
        except (httpx.HTTPError, OSError, KeyError, IndexError, ValueError, sqlite3.Error) as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {seconds:.0f} s (last: {last!r})")
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether ``pid`` runs (a zombie does not)."""
    answer = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return bool(answer.stdout.strip()) and not answer.stdout.strip().startswith("Z")


def descendants(pid: int) -> dict[int, str]:
    """Every living process below ``pid``, with its command line."""
    table = subprocess.run(["ps", "-Aww", "-o", "pid=,ppid=,stat=,command="], capture_output=True, text=True, check=True)
    children: dict[int, list[tuple[int, str]]] = {}
    for line in table.stdout.splitlines():
        own, parent, stat, command = line.split(None, 3)
        if not stat.startswith("Z"):
            children.setdefault(int(parent), []).append((int(own), command))
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        for own, command in children.get(waiting.pop(), []):
            found[own] = command
            waiting.append(own)
    return found


class Stack:
    """One platform. ``environ`` adds or overrides settings by their full names."""

    def __init__(self, home: Path, environ: dict[str, str] | None = None) -> None:
        self.home = home
        self.port = free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.model = MODEL
        self._environ = clean_environment(home, **{"PORT": str(self.port), "MLXPLATFORM_MODEL": MODEL, **(environ or {})})
        self._process: subprocess.Popen[bytes] | None = None
        self._output = home.parent / f"{home.name}.terminal"
        self.http = httpx.Client(base_url=self.base_url, timeout=60)

    # Life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        with open(self._output, "ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "workers.supervisor"],
                env=self._environ,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def wait_ready(self, seconds: float = START_TIMEOUT) -> None:
        def healthy() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(f"the platform ended with status {self.process.returncode}:\n{self.terminal()}")
            return self.http.get("/health").status_code == 200

        try:
            eventually(healthy, seconds=seconds, what="/health")
        except AssertionError as error:
            raise AssertionError(f"{error}\n--- terminal ---\n{self.terminal()[-8000:]}") from None

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """End it in order; the exit status. Harmless when it has ended already."""
        self.http.close()
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(signum)
            try:
                self._process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                said = self.terminal()[-4000:]
                raise AssertionError(f"the platform did not end within {STOP_TIMEOUT:.0f} s:\n{said}") from None
        return self._process.returncode

    def __enter__(self) -> Stack:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    # Processes -----------------------------------------------------------------------------------------------

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not started"
        return self._process

    def pids(self) -> dict[str, int]:
        """Process ids by name in the Procfile, and ``supervisor``."""
        return json.loads((self.home / "processes.json").read_text())

    def descendants(self) -> dict[int, str]:
        return descendants(self.process.pid)

    def engine_pids(self) -> list[int]:
        return [pid for pid, command in self.descendants().items() if "workers.engine" in command]

    def kill(self, name: str, signum: int = signal.SIGKILL) -> int:
        """Kill one process (``web``, ``gpu``, ``cpu``, ``scheduler``, ``broker``, ``engine``); its pid."""
        pid = self.engine_pids()[0] if name == "engine" else self.pids()[name]
        os.kill(pid, signum)
        return pid

    def kill_and_wait(self, name: str) -> int:
        """Kill -9 and wait until the supervisor (the gpu process for ``engine``) has started another; the new pid."""
        old = self.kill(name)

        def replaced() -> int:
            pids = self.engine_pids() if name == "engine" else [self.pids().get(name, 0)]
            return next((pid for pid in pids if pid != old and alive(pid)), 0)

        return eventually(replaced, what=f"another {name}")

    # What was said -------------------------------------------------------------------------------------------

    def terminal(self) -> str:
        """Everything the platform printed."""
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def logs(self, name: str) -> str:
        path = self.home / "logs" / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # Ways in -------------------------------------------------------------------------------------------------

    def openai(self, **options: Any) -> Any:
        """The unmodified SDK, without retries so that a test sees the first answer."""
        import openai

        return openai.OpenAI(base_url=f"{self.base_url}/v1", api_key="any", **{"max_retries": 0, "timeout": 60, **options})

    def async_openai(self, **options: Any) -> Any:
        import openai

        return openai.AsyncOpenAI(base_url=f"{self.base_url}/v1", api_key="any", **{"max_retries": 0, "timeout": 60, **options})

    def anthropic(self, **options: Any) -> Any:
        import anthropic

        return anthropic.Anthropic(base_url=self.base_url, api_key="any", **{"max_retries": 0, "timeout": 60, **options})

    def sql(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        """Read the platform's own database, beside it. Values stand for question marks."""
        if url := self._environ.get("DATABASE_URL"):
            with psycopg.connect(url, autocommit=True) as connection:
                return connection.execute(query.replace("?", "%s").encode(), arguments).fetchall()
        with sqlite3.connect(self.home / "db.sqlite3", timeout=20) as link:
            return link.execute(query, arguments).fetchall()

    def manage(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a management command against this platform."""
        command, environ = self._command(words)
        return subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, input=stdin, check=False)

    def start_managing(self, *words: str) -> subprocess.Popen[str]:
        """The same, begun: for commands that are interrupted. Whoever starts it waits for it."""
        command, environ = self._command(words)
        # A shell's background jobs ignore the interrupt, and so would what they start.
        heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        return subprocess.Popen(
            command, env=environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed
        )

    def _command(self, words: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
        return [sys.executable, "-m", "django", *words], {**self._environ, "DJANGO_SETTINGS_MODULE": "mlxplatform.settings"}

    def admin_password(self) -> str:
        """A known password for the admin user (the one-time password was only printed)."""
        code = (
            "from django.contrib.auth import get_user_model as m\n"
            "u = m().objects.get(username='admin'); u.set_password('pw'); u.save()"
        )
        done = self.manage("shell", "-c", code)
        assert done.returncode == 0, done.stderr
        return "pw"
