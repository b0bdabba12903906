"""A model directory appears whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mlxplatform.library import publication


def test_published_means_everything_is_there_and_nothing_else(tmp_path: Path) -> None:
    with publication.private_directory(tmp_path) as folder:
        (folder / "config.json").write_text("{}")
        (folder / "sub").mkdir()
        (folder / "sub" / "x").write_text("x")
        target = publication.publish(folder, tmp_path, "owner/name")

    assert target == tmp_path / "owner" / "name"
    assert sorted(p.relative_to(target).as_posix() for p in target.rglob("*")) == ["config.json", "sub", "sub/x"]
    assert not list(tmp_path.glob(".partial-*"))


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), publication.private_directory(tmp_path) as folder:
        (folder / "half").write_text("half")
        raise ZeroDivisionError

    assert list(tmp_path.iterdir()) == []


def test_of_many_writers_of_one_name_exactly_one_wins(tmp_path: Path) -> None:
    def write(n: int) -> bool:
        with publication.private_directory(tmp_path) as folder:
            (folder / "who").write_text(str(n))
            try:
                publication.publish(folder, tmp_path, "name")
            except publication.NameTaken:
                return False
            return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(write, range(8)))

    assert won.count(True) == 1
    assert (tmp_path / "name" / "who").read_text() == str(won.index(True))
    assert [p.name for p in tmp_path.iterdir()] == ["name"]


@pytest.mark.parametrize("name", ["../x", "/x", ".x", "x/../y", "", "a/b/c"])
def test_only_model_ids_can_be_published(tmp_path: Path, name: str) -> None:
    root = tmp_path / "models"
    with pytest.raises(ValueError, match="not a model id"), publication.private_directory(root) as folder:
        publication.publish(folder, root, name)

    assert [p.name for p in tmp_path.iterdir()] == ["models"]


def test_sweep_removes_what_a_killed_writer_left_and_spares_the_living(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from mlxplatform.library import publication\n"
        "with publication.private_directory(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'half').write_text('half'); print(folder.name, flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        name = writer.stdout.readline().strip()
        assert publication.sweep(tmp_path) == 0
        assert (tmp_path / name / "half").exists()
        os.kill(writer.pid, signal.SIGKILL)
    writer.wait()

    assert publication.sweep(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_removed_model_is_gone(tmp_path: Path) -> None:
    (tmp_path / "name").mkdir()
    (tmp_path / "name" / "x").write_text("x")

    publication.remove(tmp_path, "name")

    assert list(tmp_path.iterdir()) == []
