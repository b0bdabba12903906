"""``manage.py doctor``: compare SQL, broker and disk; say what differs; with ``--repair`` put right what can be."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from mlxplatform.operations.doctor import examine


class Command(BaseCommand):
    help = "Compare the database with the broker and the disk, and say what does not agree."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--repair", action="store_true", help="repair what can be repaired without losing anything")

    def handle(self, *args: Any, **options: Any) -> None:
        findings = examine()
        for finding in findings:
            state = ""
            if finding.repair is None:
                state = "  (needs a person)"
            elif options["repair"]:
                finding.repair()
                state = "  (repaired)"
            self.stdout.write(f"{finding.check:8} {finding.subject}: {finding.what}{state}")
        if not findings:
            self.stdout.write("Everything agrees.")
        elif not options["repair"] and any(finding.repair for finding in findings):
            self.stdout.write("Run with --repair to put right what can be.")
        left = [finding for finding in findings if finding.repair is None or not options["repair"]]
        if left:
            raise SystemExit(1)
