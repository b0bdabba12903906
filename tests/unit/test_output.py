"""Lines of children: every one in its file, none able to stop a child because the terminal is slow."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from workers import output
from workers.child_process import cause


class Paused:
    """A terminal somebody paused with Ctrl-S."""

    def __init__(self) -> None:
        self.resumed = threading.Event()
        self.text = ""

    def write(self, text: str) -> None:
        self.resumed.wait()
        self.text += text

    def flush(self) -> None:
        pass


def test_a_paused_terminal_stops_nobody_and_the_file_has_every_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "TERMINAL_BACKLOG", 10)
    terminal = Paused()
    monkeypatch.setattr(sys, "stdout", terminal)
    out = output.Output(tmp_path)
    for number in range(1000):
        out.line("web", f"line {number}")
    terminal.resumed.set()
    out.close()
    assert (tmp_path / "web.log").read_text().splitlines() == [f"line {number}" for number in range(1000)]
    assert "lines not shown" in terminal.text


def test_what_is_not_for_the_terminal_is_in_the_file_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = output.Output(tmp_path)
    out.line("broker", "quiet", terminal=False)
    out.say("loud")
    out.close()
    assert capsys.readouterr().out == "loud\n"
    assert (tmp_path / "broker.log").read_text() == "quiet\n"


@pytest.mark.parametrize(("status", "words"), [(1, "ended with status 1"), (-9, "was killed by SIGKILL"), (-99, "signal 99")])
def test_a_cause_of_death_is_said_in_words(status: int, words: str) -> None:
    assert words in cause(status)
