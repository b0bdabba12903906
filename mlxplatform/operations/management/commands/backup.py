"""``manage.py backup``: one file with everything worth keeping, also while the platform runs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from mlxplatform.operations import archive
from mlxplatform.operations.database import NotAFile


class Command(BaseCommand):
    help = "Write a backup: database, artefacts, vaults and the signing key. Safe while the platform runs."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("target", nargs="?", type=Path, help="file to write (default: backups/ in the data directory)")
        parser.add_argument("--models", action="store_true", help="include model weights")
        parser.add_argument("--verify", type=Path, metavar="FILE", help="only check an existing backup")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["verify"]:
            try:
                manifest = archive.verify(options["verify"])
            except archive.Damaged as damage:
                raise CommandError(f"{options['verify']} is damaged: {damage}") from None
            self.stdout.write(f"whole: {len(manifest.members)} files, {manifest.total_bytes} bytes, made {manifest.made_at}")
            return
        target = options["target"] or Path(settings.HOME) / "backups" / f"backup-{datetime.now(UTC):%Y%m%dT%H%M%S}.tar.gz"
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            manifest = archive.write(Path(settings.HOME), target, models=options["models"])
            archive.verify(target)
        except (NotAFile, archive.Damaged) as problem:
            raise CommandError(str(problem)) from None
        except OSError as error:
            raise CommandError(
                f"{error.filename or target} cannot be written: {(error.strerror or 'unknown reason').lower()}"
            ) from None
        self.stdout.write(f"{target}: {len(manifest.members)} files, {manifest.total_bytes} bytes, verified")
