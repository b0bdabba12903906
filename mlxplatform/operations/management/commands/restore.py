"""``manage.py restore``: put a backup back. Refuses while the platform runs and refuses a damaged file untouched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from mlxplatform.operations import archive
from workers.instance import CannotStart, take_lock


class Command(BaseCommand):
    help = "Replace the database and files of the data directory with a backup's. What was there is kept in backups/."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("source", type=Path)

    def handle(self, *args: Any, **options: Any) -> None:
        home = Path(settings.HOME)
        try:
            lock = take_lock(home)
        except CannotStart as reason:
            raise CommandError(f"stop the platform first: {reason}") from None
        connections.close_all()
        try:
            manifest = archive.restore(options["source"], home)
        except archive.Damaged as damage:
            raise CommandError(f"nothing was changed: {options['source']} is damaged: {damage}") from None
        except archive.NoRoom as large:
            raise CommandError(f"nothing was changed: {options['source']} does not fit: {large}") from None
        except OSError as error:
            raise CommandError(
                f"{error.filename or home} cannot be written: {(error.strerror or 'unknown reason').lower()}"
            ) from None
        finally:
            lock.close()
        self.stdout.write(f"restored {len(manifest.members)} files from {manifest.made_at}; the old ones are in backups/")
