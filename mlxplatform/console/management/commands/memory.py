"""``manage.py memory``: read conversations in, run a synthesis, search the wiki, review what was proposed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.table import Table

from mlxplatform.console import following, terminal
from mlxplatform.memory.orders import STAGES
from mlxplatform.memory.reading import MODES, SCOPES
from mlxplatform.memory.sources.registry import READERS

#: Seconds an uploaded export is kept when nobody stays to delete it: a queue of a night fits.
UPLOAD_KEPT_SECONDS = 2 * 86400
#: Rows of a list that are shown when none is asked for.
SHOWN = 20


class Command(BaseCommand):
    help = "The memory of the running platform: init, ingest, run, runs, search, review. Ctrl-C leaves a run; it goes on."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        init = actions.add_parser("init", help="make a vault")
        ingest = actions.add_parser("ingest", help="read an export of conversations")
        ingest.add_argument("file", type=Path)
        ingest.add_argument("--format", required=True, choices=list(READERS))
        ingest.add_argument("--source", help="name of where it is from (default: the format)")
        ingest.add_argument("--complete", action="store_true", help="forget what this export no longer holds")
        run = actions.add_parser("run", help="run a synthesis now")
        run.add_argument("--stages", nargs="+", choices=STAGES, metavar="STAGE", help=f"only these of {', '.join(STAGES)}")
        run.add_argument("--pages", nargs="+", metavar="PAGE", help="only for these pages")
        run.add_argument("--dry", action="store_true", help="say what there would be to do, and do nothing")
        runs = actions.add_parser("runs", help="past runs and what they found")
        search = actions.add_parser("search", help="find sections of the wiki")
        search.add_argument("query", nargs="+")
        search.add_argument("--mode", choices=MODES, default="words")
        search.add_argument("--scope", choices=list(SCOPES), default="all")
        for one in (runs, search):
            one.add_argument("--limit", type=int, default=SHOWN)
        review = actions.add_parser("review", help="decide about proposed changes, one after the other")
        review.add_argument("--list", action="store_true", help="only list them")
        for one in (ingest, run):
            following.add_arguments(one)
        for one in (init, ingest, run, runs, search, review):
            one.add_argument("--vault", help="name of the vault, where there are several")

    def handle(self, *args: Any, action: str, **given: Any) -> None:
        self._screen = terminal.screen(self.stdout)
        with terminal.client() as client:
            getattr(self, f"_{action}")(client, given)

    def _init(self, client: httpx.Client, given: dict[str, Any]) -> None:
        name = {"name": given["vault"]} if given["vault"] else {}
        made = terminal.asked(client, "POST", "/api/memory/init", json=name)
        self.stdout.write(f"vault {made['vault']['name']} {'was already there' if made['already_set_up'] else 'is ready'}")

    # Reading in and running ----------------------------------------------------------------------------------

    def _ingest(self, client: httpx.Client, given: dict[str, Any]) -> None:
        file = self._upload(client, given["file"])
        body = {"format": given["format"], "file_id": file, "complete": given["complete"]}
        try:
            made = terminal.asked(client, "POST", "/api/memory/import", json={**body, **_given(given, "vault", "source")})["job"]
            self.stdout.write(f"{made['id']} reads {given['file'].name}")
            if given["detach"]:
                return
            told = following.follow(client, made["id"], self._screen, cancel_on_interrupt=given["cancel_on_interrupt"])
        except CommandError:
            _drop(client, file)
            raise
        _drop(client, file)
        counts = ", ".join(f"{name} {told[name]}" for name in ("added", "changed", "unchanged", "empty", "forgotten", "skipped"))
        self.stdout.write(counts)
        for reason in told.get("reasons", []):
            self.stderr.write(terminal.printable(reason))

    def _upload(self, client: httpx.Client, path: Path) -> str:
        """Id of the export as a file of the platform, which goes by itself."""
        form = {
            "purpose": "user_data",
            "expires_after[anchor]": "created_at",
            "expires_after[seconds]": str(UPLOAD_KEPT_SECONDS),
        }
        try:
            with path.open("rb") as content:
                file = terminal.asked(client, "POST", "/v1/files", data=form, files={"file": (path.name, content)})
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror}") from None
        return str(file["id"])

    def _run(self, client: httpx.Client, given: dict[str, Any]) -> None:
        body = {**_given(given, "vault", "stages", "pages"), "dry": given["dry"]}
        made = terminal.asked(client, "POST", "/api/memory/synthesize", json=body)
        if given["dry"]:
            for stage in made["stages"]:
                waits = "" if stage["waiting"] is None else f"  {stage['waiting']} wait"
                self.stdout.write(f"{stage['stage']:10} {stage['message']}{waits}")
            return
        job = made["job"]["id"]
        self.stdout.write(f"{job} works on vault {made['job']['config']['vault']}")
        if given["detach"]:
            return
        told = following.follow(client, job, self._screen, cancel_on_interrupt=given["cancel_on_interrupt"])
        for note in told["notes"]:
            self.stdout.write(terminal.printable(note))
        if nothing := told.get("nothing_because"):
            self.stdout.write(f"nothing was proposed: {nothing}")
        else:
            self.stdout.write(
                f"{told['proposed']} changes proposed, {len(told['commits'])} commits; {terminal.program()} memory review"
            )

    # Looking -------------------------------------------------------------------------------------------------

    def _runs(self, client: httpx.Client, given: dict[str, Any]) -> None:
        found = terminal.asked(client, "GET", "/api/memory/runs", params=_given(given, "vault", "limit"))["runs"]
        table = Table("run", "state", "began", "asked", "proposed", "commits", "score", "job")
        for run in found:
            report = run["report"] or {}
            score = "" if run["score"] is None else f"{run['score']:.2f}"
            counts = str(report.get("model_calls", 0)), str(report.get("proposed", 0)), str(len(report.get("commits", ())))
            table.add_row(run["id"], run["state"], run["started_at"][:16], *counts, score, run["job"])
        if found:
            self._screen.print(table)
        else:
            self.stdout.write(f"No run yet: {terminal.program()} memory run")

    def _search(self, client: httpx.Client, given: dict[str, Any]) -> None:
        asked = {**_given(given, "vault", "limit", "mode", "scope"), "q": " ".join(given["query"])}
        hits = terminal.asked(client, "GET", "/api/memory/search", params=asked)["hits"]
        for hit in hits:
            where = hit["title"] + (f" § {hit['section']}" if hit["section"] else "")
            self._say(where, "bold")
            self._say(f"  {hit['snippet']}")
        if not hits:
            self.stdout.write("nothing found")

    # Reviewing -----------------------------------------------------------------------------------------------

    def _review(self, client: httpx.Client, given: dict[str, Any]) -> None:
        """Ask about each change until all are decided or the reviewer stops; what was skipped stays proposed."""
        waiting = terminal.asked(client, "GET", "/api/memory/changes", params=_given(given, "vault"))["changes"]
        if given["list"]:
            table = Table("change", "page", "kind", "summary")
            for change in waiting:
                table.add_row(change["id"], *(terminal.printable(change[name]) for name in ("page", "kind", "summary")))
            self._screen.print(table)
            return
        for number, change in enumerate(waiting, 1):
            card = terminal.asked(client, "GET", f"/api/memory/changes/{change['id']}")["change"]
            self._show(card, f"{number} of {len(waiting)}")
            if not self._decide(client, change["id"]):
                return
        self.stdout.write("Nothing more waits." if waiting else "Nothing waits for review.")

    def _show(self, card: dict[str, Any], place: str) -> None:
        sure = "" if card["confidence"] is None else f", confidence {card['confidence']:.2f}"
        self._say(f"{place}: {card['summary'] or card['page']}  ({card['kind']}{sure})", "bold")
        for line in card["diff"].splitlines()[2:]:
            self._say(line, {"+": "green", "-": "red"}.get(line[:1], ""))
        for source in card["sources"]:
            self._say(f"from {source['title'] or source['conversation']}, {source['date']}", "dim")
        if card["problem"]:
            self._say(f"cannot be applied: {card['problem']}", "red")

    def _decide(self, client: httpx.Client, change: str) -> bool:
        """Whether to go on with the next change. A refusal is told, and the change left as it is."""
        try:
            said = input("[a]ccept, [r]eject, [s]kip, [q]uit? ").strip().lower()[:1]
        except (EOFError, KeyboardInterrupt):
            return False
        action = {"a": "accept", "r": "reject"}.get(said)
        if action:
            try:
                done = terminal.asked(client, "POST", f"/api/memory/changes/{change}/{action}", json={})["change"]
                self.stdout.write(done["state"])
            except CommandError as error:
                self.stderr.write(str(error))
        return said != "q"

    def _say(self, text: str, style: str = "") -> None:
        self._screen.print(terminal.printable(text), style=style or None, soft_wrap=True)


def _drop(client: httpx.Client, file: str) -> None:
    """Delete an export that has been read, or was not wanted. It would go by itself, only later."""
    with suppress(CommandError):
        terminal.asked(client, "DELETE", f"/v1/files/{file}")


def _given(options: dict[str, Any], *names: str) -> dict[str, Any]:
    """Those of the options that were given."""
    return {name: options[name] for name in names if options.get(name) is not None}
