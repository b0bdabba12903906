"""Backup and restore: whole or refused, and never a half of either."""

from __future__ import annotations

import io
import os
import sqlite3
import tarfile
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from mlxplatform.operations import archive, database

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    for name, text in {
        "secret_key": "s",
        "artefacts/datasets/a.jsonl": '{"x":1}\n',
        "vaults/main/.git/HEAD": "ref: refs/heads/main\n",
        "models/big/model.safetensors": "weights",
        "logs/web.log": "noise",
    }.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (home / "artefacts" / "leak").symlink_to("/etc/passwd")
    get_user_model().objects.create_user("kept")
    return home


def names_of(source: Path) -> set[str]:
    with tarfile.open(source) as tar:
        return set(tar.getnames())


def test_a_backup_holds_what_cannot_be_made_again_and_nothing_else(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "b.tar.gz"
    archive.write(home, target)
    assert names_of(target) == {
        "db.sqlite3",
        "manifest.json",
        "home/secret_key",
        "home/artefacts/datasets/a.jsonl",
        "home/vaults/main/.git/HEAD",
    }
    with_models = tmp_path / "m.tar.gz"
    archive.write(home, with_models, models=True)
    assert "home/models/big/model.safetensors" in names_of(with_models)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "home", "m.tar.gz"], "no scratch files stay"


def test_a_restored_home_is_the_one_backed_up_and_the_old_one_is_kept(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "b.tar.gz"
    archive.write(home, target)
    other = tmp_path / "other"
    (other / "artefacts").mkdir(parents=True)
    (other / "artefacts" / "mine.txt").write_text("mine")
    (other / "db.sqlite3").write_text("old database")
    archive.restore(target, other)
    assert (other / "artefacts/datasets/a.jsonl").read_text() == '{"x":1}\n'
    assert not (other / "artefacts/mine.txt").exists()
    (replaced,) = (other / "backups").iterdir()
    assert (replaced / "db.sqlite3").read_text() == "old database"
    assert (replaced / "artefacts/mine.txt").read_text() == "mine"
    with sqlite3.connect(other / "db.sqlite3") as copy:
        assert ("kept",) in copy.execute("select username from auth_user").fetchall()


def _cut(raw: bytes) -> bytes:
    return raw[: len(raw) // 2]


def _flip(raw: bytes) -> bytes:
    middle = len(raw) // 2
    return raw[:middle] + bytes([raw[middle] ^ 0xFF]) + raw[middle + 1 :]


def _empty(raw: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [_cut, _flip, _empty])
def test_a_damaged_backup_is_refused_before_anything_is_touched(home: Path, tmp_path: Path, damage: object) -> None:
    target = tmp_path / "b.tar.gz"
    archive.write(home, target)
    target.write_bytes(damage(target.read_bytes()))  # type: ignore[operator]
    before = sorted(home.rglob("*"))
    with pytest.raises(archive.Damaged):
        archive.restore(target, home)
    assert sorted(home.rglob("*")) == before


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "home/../../evil", "evil"])
def test_an_archive_cannot_write_outside(home: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "evil.tar.gz"
    with tarfile.open(target, "w:gz") as tar:
        info = tarfile.TarInfo(name)
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    with pytest.raises(archive.Damaged, match="which no backup contains"):
        archive.restore(target, home)


def test_an_existing_target_is_not_overwritten(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "b.tar.gz"
    target.write_text("precious")
    with pytest.raises(FileExistsError):
        archive.write(home, target)
    assert target.read_text() == "precious"


def test_restore_says_that_nothing_was_changed(tmp_path: Path) -> None:
    broken = tmp_path / "broken.tar.gz"
    broken.write_bytes(os.urandom(64))
    with pytest.raises(CommandError, match="nothing was changed"):
        call_command("restore", broken)


def test_a_database_of_a_newer_version_is_refused() -> None:
    MigrationRecorder(connection).record_applied("accounts", "9999_from_the_future")
    try:
        with pytest.raises(database.NewerDatabase, match="newer version"):
            database.before_migrations()
    finally:
        MigrationRecorder(connection).record_unapplied("accounts", "9999_from_the_future")


def test_a_database_is_copied_before_it_is_migrated(settings: object, tmp_path: Path) -> None:
    settings.HOME = tmp_path  # type: ignore[attr-defined]
    assert database.before_migrations() is None, "nothing is due"
    [newest] = MigrationLoader(connection).graph.leaf_nodes("accounts")
    MigrationRecorder(connection).record_unapplied(*newest)
    try:
        copy = database.before_migrations()
    finally:
        MigrationRecorder(connection).record_applied(*newest)
    assert copy is not None and database.check(copy) is None
