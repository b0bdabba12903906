"""``manage.py jobs``: list jobs, follow one's log, cancel, retry, pause or resume it."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.table import Table

from mlxplatform.console import following, terminal
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs.acting import ACTIONS, act
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.states import STATES

_ACTOR = "terminal"


class Command(BaseCommand):
    help = "List jobs, follow one's log, cancel, retry, pause or resume it."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        listing = actions.add_parser("list")
        listing.add_argument("--state", choices=STATES)
        listing.add_argument("--kind")
        listing.add_argument("--limit", type=int, default=20)
        for action in ("tail", *ACTIONS):
            actions.add_parser(action).add_argument("job_id")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["action"] == "list":
            self._list(options)
        elif options["action"] == "tail":
            self._tail(options["job_id"])
        else:
            try:
                job = act(self._find(options["job_id"]), options["action"], _ACTOR)
            except Refusal as refusal:
                raise CommandError(refusal.message) from None
            self.stdout.write(f"{job.id} is {job.state}")

    def _find(self, job_id: str) -> Job:
        job = Job.objects.filter(pk=job_id).first()
        if job is None:
            raise Refusal(404, "job_not_found", "job not found")
        return job

    def _list(self, options: dict[str, Any]) -> None:
        jobs = Job.objects.filter(**{name: options[name] for name in ("state", "kind") if options[name]})
        table = Table("job", "kind", "state", "progress", "says")
        for job in jobs[: options["limit"]]:
            says = terminal.printable((job.error or job.message)[:60])
            table.add_row(job.id, job.kind, job.state, f"{job.progress:.0%}", says)
        terminal.screen(self.stdout).print(table)

    def _tail(self, job_id: str) -> None:
        with terminal.client() as client:
            following.follow(client, job_id, terminal.screen(self.stdout))
