"""The install script says in one sentence what is missing, and does nothing when nothing is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: What the script calls besides Python.
TOOLS = ("sh", "cat", "cksum", "uname", "getconf", "sed", "sort", "head", "dirname", "rm", "printf")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the script reads, and a PATH folder with the ordinary tools but no Python."""
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        if path := shutil.which(tool):
            (tmp_path / "bin" / tool).symlink_to(path)
    return tmp_path


def program(checkout: Path, name: str, text: str) -> None:
    path = checkout / "bin" / name
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def install(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "requirements/install.sh", *words],
        cwd=checkout,
        env={"PATH": str(checkout / "bin")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_no_python_is_one_sentence(checkout: Path) -> None:
    done = install(checkout, "run")
    assert done.returncode == 1
    assert "Python 3.11 to 3.14 is needed and none was found" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_empty_shim_and_an_old_python_are_passed_over(checkout: Path) -> None:
    program(checkout, "python3.14", "exit 127")
    program(checkout, "python3", "exit 1")  # as an old one answers the version question
    done = install(checkout, "run")
    assert "none was found" in done.stderr


def test_a_python_without_venv_is_one_sentence(checkout: Path) -> None:
    program(checkout, "python3.13", 'case "$2" in *ensurepip*) exit 1 ;; *) exit 0 ;; esac')
    done = install(checkout, "run")
    assert done.returncode == 1
    assert "python3.13 cannot create virtual environments" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="asks for glibc on Linux only")
def test_an_old_glibc_is_one_sentence(checkout: Path) -> None:
    program(checkout, "getconf", "echo glibc 2.31")
    done = install(checkout, "run")
    assert done.returncode == 1
    assert "this Linux has glibc 2.31" in done.stderr


@pytest.mark.parametrize("version", ["2.35", "2.36", "2.40", "3.0"])
def test_a_new_glibc_is_no_matter(checkout: Path, version: str) -> None:
    program(checkout, "getconf", f"echo glibc {version}")
    assert "glibc" not in install(checkout, "run").stderr


def test_an_unknown_kind_is_refused(checkout: Path) -> None:
    assert install(checkout, "all").returncode == 2


def test_nothing_is_done_when_the_stamp_agrees(checkout: Path) -> None:
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").symlink_to("/bin/true")
    names = [*sorted((checkout / "requirements").glob("*.in")), *sorted((checkout / "requirements").glob("*.txt"))]
    everything = b"".join(path.read_bytes() for path in names)
    stamp = subprocess.run(["cksum"], input=everything, capture_output=True, check=True).stdout.decode().strip()
    (checkout / ".venv" / ".installed-dev").write_text(stamp + "\n")
    for kind in ("run", "audio", "vision", "dev"):
        done = install(checkout, kind)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_requirement_is_pinned() -> None:
    for name in (
        "base.in",
        "engine.in",
        "audio.txt",
        "audio-alone.txt",
        "vision.txt",
        "vision-alone.txt",
        "dev.txt",
        "models.txt",
    ):
        for line in (ROOT / "requirements" / name).read_text().splitlines():
            if line and not line.startswith(("#", "-")):
                assert "==" in line, f"{name}: {line}"
