"""The Procfile: what it may say, and that ours names the processes there are."""

from __future__ import annotations

import sys

import pytest

from workers import procfile


def test_python_means_the_running_interpreter() -> None:
    (only,) = procfile.parse("web: python -m a.b 'c d'\n# comment\n\n")
    assert only == procfile.Process("web", (sys.executable, "-m", "a.b", "c d"))


@pytest.mark.parametrize("text", ["web python -m a", "web:", ": python", "a: x\na: y"])
def test_other_lines_are_refused_with_their_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"line [12]"):
        procfile.parse(text)


def test_ours_starts_the_broker_first() -> None:
    assert [process.name for process in procfile.load()] == ["broker", "web", "gpu", "cpu", "scheduler"]
