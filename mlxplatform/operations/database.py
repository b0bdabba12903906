"""The database as one file: copied while in use, copied before a migration, and refused when too new."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from django.conf import settings
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from mlxplatform import __version__

#: Copies kept from before migrations; older ones are removed.
KEPT_BEFORE_MIGRATIONS = 3
#: Pages copied between two looks at the lock: a backup must not stop writers.
_PAGES_PER_STEP = 1000


class NewerDatabase(Exception):
    """The database was migrated by a later version; the message says what to do."""


class NotAFile(Exception):
    """The database is a server; the message says what to use instead."""


def is_sqlite() -> bool:
    return connection.vendor == "sqlite"


def path() -> Path:
    """The database file.

    Raises:
        NotAFile: a PostgreSQL server keeps the database.
    """
    if not is_sqlite():
        raise NotAFile("this database is kept by a PostgreSQL server: back it up with pg_dump, restore it with pg_restore")
    return Path(settings.DATABASES["default"]["NAME"])


def copy_to(target: Path) -> None:
    """Write a consistent copy of the live database, through SQLite's own online backup."""
    with closing(sqlite3.connect(f"file:{path()}?mode=ro", uri=True)) as live, closing(sqlite3.connect(target)) as copy:
        live.backup(copy, pages=_PAGES_PER_STEP)


def check(database: Path) -> str | None:
    """What is wrong with a database file, or None. Reads all of it."""
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as opened:
            (answer,) = opened.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if answer == "ok" else str(answer)


def before_migrations() -> Path | None:
    """Copy an existing database aside when migrations are due; returns the copy, or None if none are.

    Raises:
        NewerDatabase: it holds migrations this version does not know.
    """
    executor = MigrationExecutor(connection)
    known = executor.loader.disk_migrations or {}
    applied = executor.loader.applied_migrations
    ours = {app for app, _ in known}
    newer = sorted(f"{app}.{name}" for app, name in applied if app in ours and (app, name) not in known)
    if newer:
        raise NewerDatabase(
            f"the database was last used by a newer version than {__version__} (it knows {newer[0]}); "
            "update this version, or restore a backup"
        )
    due = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if not applied or not due or not is_sqlite():
        return None
    folder = Path(settings.HOME) / "backups"
    folder.mkdir(exist_ok=True)
    target = folder / f"before-migration-{datetime.now(UTC):%Y%m%dT%H%M%S}.sqlite3"
    copy_to(target)
    for old in sorted(folder.glob("before-migration-*.sqlite3"))[:-KEPT_BEFORE_MIGRATIONS]:
        old.unlink()
    return target
