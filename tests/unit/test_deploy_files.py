"""The deployment files parse, and what they name exists. None of them can be run where the tests run."""

from __future__ import annotations

import configparser
import importlib.util
import plistlib
import re
from pathlib import Path

import pytest
import yaml

from mlxplatform import environment

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "guide" / "deploy"
KNOWN = {environment.PREFIX + setting.name for setting in environment.SETTINGS}


def test_launchd_and_systemd_start_what_make_starts() -> None:
    agent = plistlib.loads((FOLDER / "org.mlxplatform.plist").read_bytes())
    assert agent["ProgramArguments"] == ["/usr/bin/make", "run"]
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(FOLDER / "mlxplatform.service")
    assert unit["Service"]["ExecStart"] == "/usr/bin/make run"
    # Both must wait longer than the supervisor gives its processes: three groups of ten seconds.
    assert int(unit["Service"]["TimeoutStopSec"]) > 30
    assert agent["ExitTimeOut"] > 30


def test_compose_starts_programs_that_exist_with_settings_that_exist() -> None:
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    for name in ("web", "cpu", "scheduler"):
        python, flag, module = services[name]["command"]
        assert (python, flag) == ("python", "-m")
        assert importlib.util.find_spec(module), module
    assert services["prepare"]["command"] == ["python", "manage.py", "prepare"]
    for service in services.values():
        assert {name for name in service.get("environment", {}) if name.startswith("MLXPLATFORM_")} <= KNOWN


def test_the_dockerfile_copies_what_is_there() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
    assert re.search(r"^USER (?!root)", text, re.MULTILINE), "it does not run as root"


@pytest.mark.parametrize(
    "path", [*FOLDER.iterdir(), *(ROOT / "docs" / "guide").glob("*.md"), ROOT / "README.md"], ids=lambda p: p.name
)
def test_every_setting_a_page_names_exists(path: Path) -> None:
    named = set(re.findall(r"MLXPLATFORM_[A-Z][A-Z_]+[A-Z]", path.read_text()))
    assert named <= KNOWN
