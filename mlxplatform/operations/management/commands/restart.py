"""``manage.py restart``: another web process takes over from the running one, and no answer is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from workers.instance import is_ours, recorded


class Command(BaseCommand):
    help = "Start a new web process with the code that is installed now; the old one ends the answers it is giving and goes."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        supervisor = recorded(Path(settings.HOME)).get("supervisor", 0)
        if not supervisor or not is_ours(supervisor):
            raise CommandError("the platform does not run on this data directory")
        os.kill(supervisor, signal.SIGUSR2)
        self.stdout.write("a new web process takes over; answers that are under way end in the old one")
