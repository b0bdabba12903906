"""``manage.py erase``: show what a project, or one maker in it, has stored, and delete all of it when told ``--yes``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from mlxplatform.accounts.actors import is_named
from mlxplatform.inference.contract import Refusal
from mlxplatform.operations import erasure


class Command(BaseCommand):
    help = "Show what a project has stored; with --yes delete all of it. Keys, people and the audit log stay."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("project")
        parser.add_argument("--made-by", default="", help="only what this key (key:<id>) or person (user:<name>) made")
        parser.add_argument("--yes", action="store_true", help="delete it")

    def handle(self, *args: Any, **options: Any) -> None:
        project, maker = options["project"], options["made_by"]
        if maker and not is_named(maker):
            raise CommandError("--made-by takes key:<id> or user:<name>")
        try:
            shown = erasure.erase(project, actor="local", maker=maker) if options["yes"] else erasure.holdings(project, maker)
        except Refusal as refusal:
            raise CommandError(refusal.message) from None
        for name, count in shown.items():
            self.stdout.write(f"{count:>9}  {name}")
        if not options["yes"]:
            self.stdout.write("Nothing is deleted; add --yes to delete all of it.")
