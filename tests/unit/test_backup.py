"""Backup and restore: whole or refused, and never a half of either."""

from __future__ import annotations

import hashlib
import io
import json
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


def crafted(target: Path, members: list[tuple[tarfile.TarInfo, bytes]], database: bytes) -> Path:
    """An archive by somebody who knows the format: every member is in its manifest."""
    file = tarfile.TarInfo("db.sqlite3")
    manifest = {}
    with tarfile.open(target, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for info, content in [(file, database), *members]:
            info.size = info.size or len(content)
            tar.addfile(info, io.BytesIO(content))
            manifest[info.name] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        raw = json.dumps({"version": "1", "made_at": "now", "members": manifest}).encode()
        info = tarfile.TarInfo("manifest.json")
        info.size = len(raw)
        tar.addfile(info, io.BytesIO(raw))
    return target


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o600
    return info


EVIL = {
    "above": [entry("../evil")],
    "absolute": [entry("/etc/evil")],
    "above by a detour": [entry("home/../../evil")],
    "beside": [entry("evil")],
    "the folder itself": [entry("home")],
    "another spelling": [entry("home/./vaults/x")],
    "doubled slash": [entry("home//vaults/x")],
    "a folder of the running platform": [entry("home/backups/x")],
    "the lock": [entry("home/lock")],
    "the database by another way": [entry("home/db.sqlite3-wal")],
    "symbolic link": [entry("home/vaults", tarfile.SYMTYPE, "/etc"), entry("home/vaults/passwd")],
    "hard link": [entry("home/secret_key", tarfile.LNKTYPE, "/etc/passwd")],
    "device": [entry("home/null", tarfile.CHRTYPE)],
    "pipe": [entry("home/pipe", tarfile.FIFOTYPE)],
    "folder": [entry("home/vaults", tarfile.DIRTYPE)],
    "twice": [entry("home/vaults/x"), entry("home/vaults/x")],
    "two databases": [entry("db.sqlite3")],
    "file and folder": [entry("home/vaults/x"), entry("home/vaults/x/y")],
}


@pytest.mark.parametrize("members", EVIL.values(), ids=EVIL)
def test_an_archive_made_to_harm_is_refused_before_anything_is_touched(
    home: Path, tmp_path: Path, members: list[tarfile.TarInfo]
) -> None:
    target = crafted(tmp_path / "evil.tar.gz", [(info, b"" if not info.isfile() else b"x") for info in members], b"a database")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(archive.Damaged, match=r"no backup contains|twice|as a file and as a folder"):
        archive.restore(target, home)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_archive_that_unpacks_to_more_than_the_disk_holds_is_refused_unread(home: Path, tmp_path: Path) -> None:
    """A petabyte of zeros is a kilobyte in a tar of a tar's own kind, and a few megabytes in gzip."""
    sparse = entry("home/vaults/x")
    sparse.pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.size": str(10**15),
        "GNU.sparse.map": "0,1",
    }
    with pytest.raises(archive.Damaged, match="no backup contains"):
        archive.restore(crafted(tmp_path / "sparse.tar.gz", [(sparse, b"x")], b"y"), home)
    huge = entry("home/vaults/x")
    huge.size = 10**15
    target = tmp_path / "huge.tar.gz"
    with tarfile.open(target, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        tar.fileobj.write(huge.tobuf(tarfile.PAX_FORMAT))  # type: ignore[union-attr]
        tar.fileobj.write(bytes(1 << 20))  # type: ignore[union-attr]
    with pytest.raises(archive.NoRoom, match="are free"):
        archive.restore(target, home)
    with pytest.raises(CommandError, match=r"nothing was changed: .* does not fit"):
        call_command("restore", target)


def test_a_manifest_that_is_none_is_refused(home: Path, tmp_path: Path) -> None:
    for raw in (b"[" * 100_000, b"[]", b'{"members": [], "version": 1, "made_at": 2}', b'{"members": {"x": 1}}'):
        target = tmp_path / "m.tar.gz"
        with tarfile.open(target, "w:gz") as tar:
            info = entry("manifest.json")
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
        with pytest.raises(archive.Damaged, match="cannot be read"):
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
