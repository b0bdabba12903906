"""This machine, as far as fitting models is concerned: memory, chip, and how fast it reads memory.

Decoding one token reads every weight once, so tokens per second are at most bandwidth divided by bytes. The
table is of published figures; on other machines a cautious figure is assumed and said to be so.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache

#: Share of memory models may use when nothing is configured (macOS wires about 75 % at most).
BUDGET_SHARE = 0.7
#: Memory bandwidth of Apple's chips, GB/s, and the memory sizes they are sold with, GB.
CHIPS: dict[str, tuple[int, tuple[int, ...]]] = {
    "M1": (68, (8, 16)),
    "M1 Pro": (200, (16, 32)),
    "M1 Max": (400, (32, 64)),
    "M1 Ultra": (800, (64, 128)),
    "M2": (100, (8, 16, 24)),
    "M2 Pro": (200, (16, 32)),
    "M2 Max": (400, (32, 64, 96)),
    "M2 Ultra": (800, (64, 128, 192)),
    "M3": (100, (8, 16, 24)),
    "M3 Pro": (150, (18, 36)),
    "M3 Max": (400, (36, 64, 128)),
    "M3 Ultra": (819, (96, 256, 512)),
    "M4": (120, (16, 24, 32)),
    "M4 Pro": (273, (24, 48, 64)),
    "M4 Max": (546, (36, 64, 128)),
}
#: GB/s assumed for any other machine: what one core of an ordinary server reads.
ASSUMED_BANDWIDTH = 20


@dataclass(frozen=True)
class Machine:
    """``bandwidth`` in bytes per second; ``known`` tells whether it comes from the table."""

    name: str
    memory: int
    budget: int
    bandwidth: float
    known: bool
    metal: bool

    def describe(self) -> dict[str, object]:
        return {
            "name": self.name,
            "memory_bytes": self.memory,
            "usable_bytes": self.budget,
            "bandwidth_gb_s": round(self.bandwidth / 1e9, 1),
            "bandwidth_assumed": not self.known,
            "metal": self.metal,
        }


def this_machine(configured_budget: int = 0) -> Machine:
    """The machine this process runs on; ``configured_budget`` in bytes, 0: a share of its memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    name = _chip()
    chip = CHIPS.get(name.removeprefix("Apple "))
    return Machine(
        name=name,
        memory=memory,
        budget=configured_budget or int(memory * BUDGET_SHARE),
        bandwidth=(chip[0] if chip else ASSUMED_BANDWIDTH) * 1e9,
        known=chip is not None,
        metal=sys.platform == "darwin" and platform.machine() == "arm64",
    )


@lru_cache(maxsize=1)
def _chip() -> str:
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=2, check=True).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return "Apple"
    return platform.processor() or platform.machine()
