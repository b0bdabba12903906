"""``manage.py jobs``: list jobs, follow one's log, cancel, retry, pause or resume it."""

from __future__ import annotations

import json
from typing import IO, Any, cast

import httpx
from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from mlxplatform.console import terminal
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import service
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.states import STATES

_ACTIONS = {"cancel": service.cancel, "retry": service.retry, "pause": service.pause, "resume": service.resume}
_ACTOR = "terminal"


class Command(BaseCommand):
    help = "List jobs, follow one's log, cancel, retry, pause or resume it."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        listing = actions.add_parser("list")
        listing.add_argument("--state", choices=STATES)
        listing.add_argument("--kind")
        listing.add_argument("--limit", type=int, default=20)
        for action in ("tail", *_ACTIONS):
            actions.add_parser(action).add_argument("job_id")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["action"] == "list":
            self._list(options)
        elif options["action"] == "tail":
            self._tail(options["job_id"])
        else:
            try:
                job = _ACTIONS[options["action"]](options["job_id"], by=_ACTOR)
            except Refusal as refusal:
                raise CommandError(refusal.message) from None
            self.stdout.write(f"{job.id} is {job.state}")

    def _list(self, options: dict[str, Any]) -> None:
        jobs = Job.objects.filter(**{name: options[name] for name in ("state", "kind") if options[name]})
        table = Table("job", "kind", "state", "progress", "says")
        for job in jobs[: options["limit"]]:
            table.add_row(job.id, job.kind, job.state, f"{job.progress:.0%}", (job.error or job.message)[:60])
        Console(file=cast("IO[str]", self.stdout._out), width=None if self.stdout.isatty() else 120).print(table)

    def _tail(self, job_id: str) -> None:
        console = Console(file=cast("IO[str]", self.stdout._out))
        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%")
        try:
            with terminal.client() as client, client.stream("GET", f"/api/jobs/{job_id}/stream") as response:
                if response.status_code != 200:
                    raise terminal.explained(response)
                with Progress(*columns, console=console, transient=True) as progress:
                    bar = progress.add_task(job_id, total=1.0)
                    for name, data in terminal.events(response):
                        if name == "end":
                            break
                        event = json.loads(data)
                        if event.get("progress") is not None:
                            progress.update(bar, completed=event["progress"], description=event.get("message") or job_id)
                        if event["type"] == "log":
                            console.print(event["line"], markup=False, highlight=False)
                        elif event["type"] not in {"stage", "metric"}:
                            console.print(f"{event['type']} {event.get('error') or ''}".rstrip(), markup=False)
        except httpx.TransportError:
            raise terminal.unreachable() from None
        except KeyboardInterrupt:
            return
