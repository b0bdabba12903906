"""Battery and heat: what systems say, read as it is, and unknown where they say nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers import power
from workers.power import Power

MAINS = "Now drawing from 'AC Power'\n -InternalBattery-0 (id=1234)\t100%; charged; 0:00 remaining present: true\n"
BATTERY = "Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1234)\t61%; discharging; 3:12 remaining present: true\n"
COOL = "Note: No thermal warning level has been recorded\nNote: No performance warning level has been recorded\n"
HOT = "CPU_Scheduler_Limit \t= 100\nCPU_Available_CPUs \t= 8\nCPU_Speed_Limit \t= 54\n"
WARM = HOT.replace("54", "100")


@pytest.mark.parametrize(("said", "on_battery"), [(MAINS, False), (BATTERY, True), ("", None), ("pmset: error", None)])
def test_what_pmset_says_of_the_battery(said: str, on_battery: bool | None) -> None:
    assert power.battery_of(said) is on_battery


@pytest.mark.parametrize(("said", "hot"), [(COOL, False), (WARM, False), (HOT, True), ("", None)])
def test_what_pmset_says_of_heat(said: str, hot: bool | None) -> None:
    assert power.heat_of(said) is hot


def supply(root: Path, name: str, **files: str) -> None:
    (root / name).mkdir(parents=True)
    for file, text in files.items():
        (root / name / file).write_text(text + "\n")


def test_what_linux_says_of_the_battery(tmp_path: Path) -> None:
    assert power._linux_battery(tmp_path) is None
    supply(tmp_path, "BAT0", type="Battery", status="Discharging")
    assert power._linux_battery(tmp_path) is True
    supply(tmp_path, "AC", type="Mains", online="1")
    assert power._linux_battery(tmp_path) is False
    (tmp_path / "AC" / "online").write_text("0\n")
    assert power._linux_battery(tmp_path) is True


def test_what_linux_says_of_heat(tmp_path: Path) -> None:
    assert power._linux_heat(tmp_path) is None
    supply(tmp_path, "thermal_zone0", temp="60000", trip_point_0_type="passive", trip_point_0_temp="50000")
    assert power._linux_heat(tmp_path) is None  # no critical temperature: nothing to compare with
    supply(tmp_path, "thermal_zone1", temp="60000", trip_point_0_type="critical", trip_point_0_temp="100000")
    assert power._linux_heat(tmp_path) is False
    (tmp_path / "thermal_zone1" / "temp").write_text("96000\n")
    assert power._linux_heat(tmp_path) is True


def test_only_what_was_asked_for_and_is_known_holds_work_up() -> None:
    worst = Power(on_battery=True, hot=True)
    assert power.reason(worst, battery=False, heat=False) == ""
    assert "battery" in power.reason(worst, battery=True, heat=True)
    assert "cool" in power.reason(worst, battery=False, heat=True)
    assert power.reason(Power(), battery=True, heat=True) == ""


def test_this_machine_can_be_asked() -> None:
    assert isinstance(power.look(), Power)
