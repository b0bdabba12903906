"""One supervised child: started, read, restarted with growing pauses, ended.

Each child leads a session of its own, so that Ctrl-C reaches the supervisor alone, which then ends things in
order, and so that whatever a killed child had started can be ended with it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping

from workers.listener import DOOR, READY
from workers.output import Output
from workers.procfile import Process

#: Pauses before restarts, seconds; the last one repeats.
BACK_OFF = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
#: A child that ran this long, seconds, starts over at the first pause.
STABLE_AFTER = 60.0
#: Longest line read whole, bytes; longer ones are cut into pieces.
LINE_LIMIT = 2**16
#: A machine that has no process, memory or descriptor to spare just now; it may have a moment later.
PASSING = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
#: Seconds a dead child's last lines may take to arrive.
LAST_LINES = 1.0


class Misconfigured(Exception):
    """A child said (by status 78, EX_CONFIG) that starting it again is no use."""


def cause(status: int) -> str:
    """Why a process ended, in words."""
    if status < 0:
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"
    return f"ended with status {status}"


class Child:
    """One line of the Procfile at work."""

    def __init__(
        self,
        process: Process,
        environment: Mapping[str, str],
        lifeline_fd: int,
        output: Output,
        *,
        on_terminal: bool,
        door: socket.socket | None = None,
    ):
        self.process = process
        #: Set once a child with a ``door`` accepts connections.
        self.ready = asyncio.Event()
        self._door = door
        self.pid: int | None = None
        self._environment = environment
        self._lifeline_fd = lifeline_fd
        self._output = output
        self._on_terminal = on_terminal
        self._stopping = False
        self._wake = asyncio.Event()
        self._failures = 0

    @property
    def name(self) -> str:
        return self.process.name

    async def run(self, announce: Callable[[], None], sweep: bool) -> None:
        """Keep the process running until :meth:`stop`. ``announce`` is called whenever its pid changes.

        With ``sweep`` the rest of a dead child's process group is killed before the restart.

        Raises:
            Misconfigured: the child asked not to be started again.
        """
        while not self._stopping:
            started = time.monotonic()
            try:
                child = self._spawn()
            except OSError as error:
                if error.errno not in PASSING:
                    raise
                self._failures += 1
                await self._pause(f"{self.name} cannot be started ({error.strerror})")
                continue
            self.pid = child.pid
            announce()
            if self._stopping:
                self.signal(signal.SIGTERM)
            reader = asyncio.create_task(self._read(child))
            status = await _exit_of(child)
            if sweep or self._stopping:
                self.signal(signal.SIGKILL)
            await asyncio.wait({reader}, timeout=LAST_LINES)  # grandchildren may hold the pipe open for ever
            reader.cancel()
            self.pid = None
            announce()
            if self._stopping:
                return
            if status == os.EX_CONFIG:
                raise Misconfigured(f"{self.name} cannot run as configured; its last lines above say why.")
            self._failures = 0 if time.monotonic() - started > STABLE_AFTER else self._failures + 1
            await self._pause(f"{self.name} (pid {child.pid}) {cause(status)}")

    async def _pause(self, why: str) -> None:
        """Say why, and wait before the next start; :meth:`stop` ends the wait."""
        pause = BACK_OFF[min(self._failures, len(BACK_OFF)) - 1] if self._failures else BACK_OFF[0]
        self._output.line("supervisor", f"{why}; starting it again in {pause} s, see logs/{self.name}.log")
        try:
            await asyncio.wait_for(self._wake.wait(), pause)
        except TimeoutError:
            pass

    def stop(self) -> None:
        """Ask the process to end and start it no more."""
        self._stopping = True
        self._wake.set()
        if self.pid is not None:
            try:
                os.kill(self.pid, signal.SIGTERM)
            except ProcessLookupError:
                pass

    def retire(self) -> None:
        """Start the process no more, and tell it that another has taken its door over: it may take its time."""
        self._stopping = True
        self._wake.set()
        if self.pid is not None:
            try:
                os.kill(self.pid, signal.SIGUSR1)
            except ProcessLookupError:
                pass

    def signal(self, signum: signal.Signals) -> None:
        """Signal the whole process group."""
        if self.pid is not None:
            try:
                os.killpg(self.pid, signum)
            except (ProcessLookupError, PermissionError):
                pass

    def _spawn(self) -> subprocess.Popen[bytes]:
        more, fds = {}, [self._lifeline_fd]
        heard, said = os.pipe() if self._door is not None else (-1, -1)
        if self._door is not None:
            fds += [self._door.fileno(), said]
            more = {DOOR: str(self._door.fileno()), READY: str(said)}
        try:
            child = subprocess.Popen(
                self.process.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**self._environment, **more},
                pass_fds=fds,
                start_new_session=True,
            )
        except OSError:
            if heard >= 0:
                os.close(heard)
            raise
        finally:
            if said >= 0:
                os.close(said)
        if heard >= 0:
            asyncio.get_running_loop().add_reader(heard, self._hear, heard)
        return child

    def _hear(self, heard: int) -> None:
        """The child has said that it accepts connections, or is gone."""
        asyncio.get_running_loop().remove_reader(heard)
        if os.read(heard, 1):
            self.ready.set()
        os.close(heard)

    async def _read(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        lines = asyncio.StreamReader(limit=LINE_LIMIT)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), child.stdout)
        try:
            while True:
                try:
                    raw = await lines.readline()
                except ValueError:
                    continue  # a line over the limit: the reader has dropped what it held
                if not raw:
                    return
                self._output.line(self.name, raw.decode(errors="replace").rstrip("\n"), terminal=self._on_terminal)
        finally:
            pipe.close()


async def _exit_of(child: subprocess.Popen[bytes]) -> int:
    """The exit status, as soon as there is one.

    asyncio's own ``Process.wait`` also waits for the end of the pipes, which a server left behind by its killed guard
    holds open: the guard's death would go unnoticed.
    """
    loop = asyncio.get_running_loop()
    status: asyncio.Future[int] = loop.create_future()

    def tell(value: int) -> None:
        if not status.done():
            status.set_result(value)

    def wait() -> None:
        value = child.wait()
        try:
            loop.call_soon_threadsafe(tell, value)
        except RuntimeError:
            pass  # the loop has ended before the child

    threading.Thread(target=wait, name=f"wait-{child.pid}", daemon=True).start()
    return await status
