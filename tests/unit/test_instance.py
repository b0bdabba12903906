"""One platform per data directory, and what a killed one leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from workers import instance
from workers.instance import CannotStart, end_leftovers, record, take_lock


def test_the_lock_names_its_owner_to_the_second_comer(tmp_path: Path) -> None:
    import os

    with take_lock(tmp_path), pytest.raises(CannotStart, match=f"pid {os.getpid()}"):
        take_lock(tmp_path)


def test_the_lock_is_free_after_its_owner_closed_it(tmp_path: Path) -> None:
    take_lock(tmp_path).close()
    take_lock(tmp_path).close()


def test_a_place_that_cannot_be_a_directory_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotStart, match="cannot be written: not a directory"):
        take_lock(tmp_path / "file" / "home")


def test_a_recorded_stranger_is_left_alone(tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        record(tmp_path, {"gpu": stranger.pid})
        assert end_leftovers(tmp_path) == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_recorded_process_of_ours_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "LEFTOVER_GRACE", 0.1)
    ours = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "-m workers."], start_new_session=True)
    try:
        record(tmp_path, {"gpu": ours.pid})
        assert end_leftovers(tmp_path) == ["gpu"]
        assert ours.wait(10) == -9
    finally:
        ours.kill()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"gpu": "x"}'])
def test_a_damaged_record_is_no_record(tmp_path: Path, content: str) -> None:
    (tmp_path / "processes.json").write_text(content)
    assert end_leftovers(tmp_path) == []
