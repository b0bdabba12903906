"""Which adapters one engine child has mounted, as far as its supervisor was told.

An adapter that something running uses stays until that has ended: taking it away would go on with other weights in
the middle of an answer, without any error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from workers.engine import protocol


class Mounts:
    """Guarded by its engine's lock. ``send`` hands an order to the present child."""

    def __init__(self, send: Callable[[protocol.Order], None]):
        self._send = send
        #: Facts by name; empty while the child has not answered.
        self._mounted: dict[str, dict[str, Any]] = {}
        self._refused: dict[str, str] = {}
        self._going: set[str] = set()

    def need(self, adapters: Mapping[str, Path]) -> None:
        """Mount what is not mounted. In front of its request on the same socket, it is there in time."""
        for name, path in adapters.items():
            self._going.discard(name)
            if name not in self._mounted:
                self._mounted[name] = {}
                self._refused.pop(name, None)
                self._send(protocol.Mount(name, str(path)))

    def answered(self, report: protocol.Mounted) -> None:
        if report.error:
            self._mounted.pop(report.name, None)
            self._refused[report.name] = report.error
        elif report.name in self._mounted:
            self._mounted[report.name] = report.facts

    def forget(self, name: str, used: Iterable[str]) -> None:
        """Unmount now, or when nothing running names it any more."""
        self._refused.pop(name, None)
        if name in self._mounted:
            self._going.add(name)
            self.settle(used)

    def settle(self, used: Iterable[str]) -> None:
        """Something ended; ``used`` are the adapters of what still runs."""
        for name in self._going - set(used) if self._going else ():
            self._going.discard(name)
            self._mounted.pop(name, None)
            self._send(protocol.Unmount(name))

    def reset(self) -> None:
        """A new child has nothing mounted."""
        self._mounted.clear()
        self._refused.clear()
        self._going.clear()

    def listing(self) -> dict[str, dict[str, Any]]:
        """By name: ``state`` mounting, mounted or refused, with the facts or the reason."""
        mounted = {name: {"state": "mounted" if facts else "mounting", **facts} for name, facts in list(self._mounted.items())}
        return {**mounted, **{name: {"state": "refused", "reason": reason} for name, reason in list(self._refused.items())}}
