"""Whether this machine runs on battery or too hot to train on: the one module that asks the system.

macOS is asked through ``pmset``, Linux through ``/sys``. What a system does not tell is unknown, and unknown never
holds work up. The parsers are pure; what they say of a Mac follows recorded output and was not run on one.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

#: macOS slows the processor when hot; below this percentage of its speed it counts as hot.
SLOWED = 80
#: Linux: degrees below a zone's critical temperature at which it counts as hot.
NEAR_CRITICAL = 5.0
#: Seconds pmset may take.
_PATIENCE = 5.0
_SUPPLIES, _ZONES = Path("/sys/class/power_supply"), Path("/sys/class/thermal")


@dataclass(frozen=True)
class Power:
    """None is unknown."""

    on_battery: bool | None = None
    hot: bool | None = None


def look() -> Power:
    """The machine as it is now; cheap on Linux, two short commands on macOS."""
    if sys.platform == "darwin":
        return Power(battery_of(_pmset("batt")), heat_of(_pmset("therm")))
    return Power(_linux_battery(_SUPPLIES), _linux_heat(_ZONES))


def reason(now: Power, *, battery: bool, heat: bool) -> str:
    """Why work should wait, by what was asked to be heeded; empty when it may run."""
    if battery and now.on_battery:
        return "Waiting for mains power: the machine runs on battery."
    if heat and now.hot:
        return "Waiting for the machine to cool down."
    return ""


def battery_of(said: str) -> bool | None:
    """From ``pmset -g batt``: Now drawing from 'Battery Power'."""
    found = re.search(r"drawing from '([^']+)'", said)
    return found[1] == "Battery Power" if found else None


def heat_of(said: str) -> bool | None:
    """From ``pmset -g therm``: CPU_Speed_Limit = 100, or notes that nothing was recorded."""
    limits = [int(value) for value in re.findall(r"CPU_Speed_Limit\s*=\s*(\d+)", said)]
    if limits:
        return min(limits) < SLOWED
    return False if "No thermal warning level" in said else None


def _pmset(what: str) -> str:
    try:
        done = subprocess.run(["/usr/bin/pmset", "-g", what], capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _linux_battery(root: Path) -> bool | None:
    """On battery when there is one and no mains is online."""
    kinds = {path: _read(path / "type") for path in sorted(root.glob("*"))}
    if "Battery" not in kinds.values():
        return None
    mains = [path for path, kind in kinds.items() if kind in {"Mains", "USB"}]
    if mains:
        return not any(_read(path / "online") == "1" for path in mains)
    return any(_read(path / "status") == "Discharging" for path, kind in kinds.items() if kind == "Battery")


def _linux_heat(root: Path) -> bool | None:
    """Hot when a zone is close to the temperature it calls critical."""
    known = None
    for zone in sorted(root.glob("thermal_zone*")):
        critical = next(
            (
                _number(_read(path.with_name(path.name.replace("_type", "_temp"))))
                for path in sorted(zone.glob("trip_point_*_type"))
                if _read(path) == "critical"
            ),
            None,
        )
        now = _number(_read(zone / "temp"))
        if critical is not None and now is not None and critical > 0:
            if now >= critical - NEAR_CRITICAL:
                return True
            known = False
    return known


def _number(text: str) -> float | None:
    """Millidegrees as degrees."""
    try:
        return int(text) / 1000
    except ValueError:
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
