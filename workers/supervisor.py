"""``make run``: one program that starts everything in the Procfile, keeps it running, and ends it in order.

It checks what can be checked before anything starts (settings, data directory, lock, port), prepares the data
directory, starts the broker, then the rest, prints one line when the platform answers, and restarts what dies.
It knows processes, never their work: no Django, no Redis client, no mlx here.

Why not an existing one: honcho cannot restart a single child, and Dramatiq's own master leaves its workers
running after kill -9. Here every child holds a lifeline (:mod:`workers.guard`), so nothing outlives us.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxplatform import environment, paths
from workers import broker_process, listener, procfile, ready
from workers.child_process import Child, Misconfigured
from workers.guard import Lifeline
from workers.instance import CannotStart, end_leftovers, record, take_lock
from workers.output import Output

ROOT = Path(__file__).resolve().parent.parent
BROKER, WEB = "broker", "web"

#: Who ends before whom: the web finishes its answers while the engines still work; the broker goes last.
STOP_ORDER: tuple[tuple[str, ...], ...] = (("web",), (), (BROKER,))
#: Seconds each group may take to end by itself before it is killed.
STOP_TIMEOUT = 10.0
#: Seconds a new web process may take until it accepts connections; the old one works on meanwhile.
HANDOVER_TIMEOUT = 60.0
#: Seconds within which signals are one wish: a terminal, make and a service manager may each pass the same one on.
ONE_WISH = 1.0
#: Seconds the broker may take to answer for the first time.
BROKER_TIMEOUT = 60.0


def child_environment(settings: environment.Environment, lifeline: Lifeline) -> dict[str, str]:
    redis_url = settings.redis_url or f"unix://{paths.broker_socket(settings.home)}"
    return {
        **os.environ,
        **lifeline.environment(),
        "MLXPLATFORM_HOME": str(settings.home),
        "REDIS_URL": redis_url,
        "DJANGO_SETTINGS_MODULE": "mlxplatform.settings",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
    }


def prepare(environ: Mapping[str, str], lifeline: Lifeline, output: Output) -> dict[str, str]:
    """Bring the data directory up to date in a process of its own; return what it has to tell.

    Raises:
        CannotStart: it failed; its own lines have said why.
    """
    read_fd, write_fd = os.pipe()
    worker = subprocess.Popen(
        [sys.executable, "-m", "django", "prepare", "--result-fd", str(write_fd)],
        env=dict(environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(write_fd, lifeline.read_fd),
        text=True,
        errors="replace",
    )
    os.close(write_fd)
    try:
        assert worker.stdout is not None
        for line in worker.stdout:
            output.line("prepare", line.rstrip("\n"))
        status = worker.wait()
        with open(read_fd, encoding="utf-8") as result:
            told = result.read()
    finally:
        if worker.poll() is None:
            worker.kill()
    if status != 0:
        raise CannotStart("the data directory could not be prepared; the lines above say why.")
    return json.loads(told) if told else {}


class Supervisor:
    """The children of one run."""

    def __init__(
        self,
        settings: environment.Environment,
        environ: Mapping[str, str],
        lifeline: Lifeline,
        output: Output,
        door: socket.socket | None = None,
    ):
        self._settings = settings
        self._environ = environ
        self._lifeline = lifeline
        self._output = output
        self._door = door
        self._asked = asyncio.Event()
        self._asked_at = 0.0
        self._hurry = asyncio.Event()
        self._handover = asyncio.Event()
        self._leaving: dict[asyncio.Task[None], Child] = {}
        wanted = [process for process in procfile.load() if process.name != BROKER or not settings.redis_url]
        self._children = {process.name: self._child(process) for process in wanted}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def _child(self, process: procfile.Process) -> Child:
        door = self._door if process.name == WEB else None
        return Child(process, self._environ, self._lifeline.read_fd, self._output, on_terminal=process.name != BROKER, door=door)

    async def run(self, told: Mapping[str, str]) -> None:
        """Start, keep and finally end the children. Returns when asked to stop.

        Raises:
            CannotStart: the broker did not start, or a child cannot run as configured.
        """
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(signum, self._ask_to_stop)
        loop.add_signal_handler(signal.SIGUSR2, self._handover.set)
        announcement: asyncio.Task[None] | None = None
        try:
            if BROKER in self._children:
                self._start(BROKER)
                await self._broker_answers()
            for name in self._children:
                if name not in self._tasks:
                    self._start(name)
            announcement = asyncio.create_task(ready.announce(self._settings, told, self._output))
            await self._watch()
        except Misconfigured as error:
            raise CannotStart(str(error)) from None
        finally:
            if announcement is not None:
                announcement.cancel()
            await self._stop()

    async def _watch(self) -> None:
        """Until asked to stop: children that cannot run as configured end it, and web processes hand over when told to."""
        stop = asyncio.create_task(self._asked.wait())
        while not stop.done():
            handover = asyncio.create_task(self._handover.wait())
            ended, _ = await asyncio.wait({stop, handover, *self._tasks.values()}, return_when=asyncio.FIRST_COMPLETED)
            handover.cancel()
            for task in ended - {stop, handover}:
                task.result()
            if self._handover.is_set() and not stop.done():
                self._handover.clear()
                await self._hand_over(stop)

    async def _hand_over(self, stop: asyncio.Task[Any]) -> None:
        """Start another web process beside the running one; once it accepts connections, the old one ends its answers."""
        if self._door is None:
            self._output.line("supervisor", "an IPv6 address cannot be handed over; restart the platform instead")
            return
        old, old_task = self._children[WEB], self._tasks[WEB]
        fresh = self._child(old.process)
        task = asyncio.create_task(fresh.run(self._record, sweep=True), name=WEB)
        accepts = asyncio.create_task(fresh.ready.wait())
        await asyncio.wait({accepts, task, stop}, timeout=HANDOVER_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        accepts.cancel()
        if not fresh.ready.is_set():
            fresh.stop()
            fresh.signal(signal.SIGKILL)
            await asyncio.wait({task})
            if not task.cancelled():
                task.exception()
            self._output.line("supervisor", "the new web process did not come up, see logs/web.log; the old one goes on")
            return
        self._children[WEB], self._tasks[WEB] = fresh, task
        self._record()
        old.retire()
        self._leaving[old_task] = old
        old_task.add_done_callback(self._leaving.pop)
        self._output.line("supervisor", f"web (pid {fresh.pid}) has taken over; pid {old.pid} ends its answers")

    def _ask_to_stop(self) -> None:
        now = time.monotonic()
        if not self._asked.is_set():
            self._asked_at = now
        elif now - self._asked_at > ONE_WISH:
            self._hurry.set()  # a second Ctrl-C: now
        self._asked.set()

    def _start(self, name: str) -> None:
        # The broker's group is spared: a server whose guard died is asked by the next guard to write its log.
        self._tasks[name] = asyncio.create_task(self._children[name].run(self._record, sweep=name != BROKER), name=name)

    def _record(self) -> None:
        pids = {name: child.pid for name, child in self._children.items() if child.pid is not None}
        record(self._settings.home, {"supervisor": os.getpid(), **pids})

    async def _broker_answers(self) -> None:
        address = paths.broker_socket(self._settings.home)
        try:
            async with asyncio.timeout(BROKER_TIMEOUT):
                while not await asyncio.to_thread(broker_process.answers, address):
                    if self._asked.is_set():
                        return
                    if self._tasks[BROKER].done():
                        self._tasks[BROKER].result()
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise CannotStart(f"the broker did not answer within {BROKER_TIMEOUT:.0f} s; see logs/{BROKER}.log.") from None

    async def _stop(self) -> None:
        named = {name for group in STOP_ORDER for name in group}
        for group in STOP_ORDER:
            names = group or tuple(name for name in self._tasks if name not in named)
            await self._stop_group([name for name in names if name in self._tasks])

    async def _stop_group(self, names: list[str]) -> None:
        if not names:
            return
        for name in names:
            self._children[name].stop()
        leaving = tuple(self._leaving) if WEB in names else ()
        running = asyncio.gather(*(self._tasks[name] for name in names), *leaving, return_exceptions=True)
        hurry = asyncio.create_task(self._hurry.wait())
        both: set[asyncio.Future[Any]] = {running, hurry}
        await asyncio.wait(both, timeout=STOP_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            for name in names:
                if self._children[name].pid is not None:
                    self._output.line("supervisor", f"{name} did not end in time and is killed")
                self._children[name].signal(signal.SIGKILL)
            for child in tuple(self._leaving.values()):
                child.signal(signal.SIGKILL)
            await running
        hurry.cancel()


def start() -> None:
    """Run the platform in the foreground.

    Raises:
        CannotStart, BadSetting: one sentence for a person.
    """
    settings = environment.read()
    with take_lock(settings.home):
        door = listener.listen(settings.host, settings.port)
        try:
            output = Output(paths.logs_dir(settings.home))
        except OSError as error:
            raise CannotStart(f"the log folder in {settings.home} cannot be written: {error.strerror}.") from None
        lifeline = Lifeline()
        try:
            for name in end_leftovers(settings.home):
                output.line("supervisor", f"ended {name}, left over from a killed run")
            environ = child_environment(settings, lifeline)
            told = prepare(environ, lifeline, output)

            async def keep_running() -> None:
                await Supervisor(settings, environ, lifeline, output, door).run(told)

            asyncio.run(keep_running())
            output.say("MLX Platform has stopped.")
        finally:
            lifeline.close()
            output.close()
            if door is not None:
                door.close()


def main() -> None:
    try:
        start()
    except (CannotStart, environment.BadSetting, PermissionError) as error:
        sys.exit(f"mlxplatform: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
