"""The web address as a socket of the supervisor, which every web process accepts from.

While one web process hands over to another, or a killed one is replaced, connections wait in the kernel instead of being
refused. IPv4 only: Daphne adopts no other socket by its number; an IPv6 address is bound by the web process itself.
"""

from __future__ import annotations

import errno
import os
import socket

from workers.instance import CannotStart

#: Connections that may wait for a web process.
BACKLOG = 1024
#: Environment variables that carry the numbers of the socket to accept from, and of the pipe to write to once that is done.
DOOR, READY = "MLXP_DOOR", "MLXP_READY"


def listen(host: str, port: int) -> socket.socket | None:
    """Take the address before anything starts; None where the web process has to.

    Raises:
        CannotStart: the address cannot be bound.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror:
        raise CannotStart(f"MLXPLATFORM_HOST={host} is not an address of this machine.") from None
    family, kind, protocol, _, address = found[0]
    taken = socket.socket(family, kind, protocol)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind(address)
        taken.listen(BACKLOG)
    except OSError as error:
        taken.close()
        raise CannotStart(_why(error, host, port)) from None
    if family == socket.AF_INET:
        return taken
    taken.close()
    return None


def _why(error: OSError, host: str, port: int) -> str:
    if isinstance(error, PermissionError):
        return f"port {port} needs more rights than this user has; choose one above 1023 with PORT=…."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"MLXPLATFORM_HOST={host} is not an address of this machine."
    return f"port {port} on {host} is taken by another program; choose another with PORT=…."


def inherited() -> int | None:
    """The number of the socket that the supervisor gave to this process, once; None when it gave none."""
    door = os.environ.pop(DOOR, "")
    if not door:
        return None
    os.set_inheritable(int(door), False)
    return int(door)


def tell_ready() -> None:
    """Tell the supervisor that connections are accepted now."""
    if said := os.environ.pop(READY, ""):
        os.write(int(said), b"1")
        os.close(int(said))
