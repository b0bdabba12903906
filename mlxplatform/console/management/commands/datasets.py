"""``manage.py datasets``: list datasets and templates, import a file, run a template, export a version."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import httpx
from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from mlxplatform.console import following, terminal
from mlxplatform.datasets.formats import EXPORTS
from mlxplatform.datasets.imports.opening import FORMATS
from mlxplatform.datasets.queries import SPLITS
from mlxplatform.datasets.submit import PREVIEW_ROWS

#: Datasets that are listed when no number is given, and characters of a text in a preview.
SHOWN, EXCERPT = 20, 400
#: The file name that stands for the terminal's own output.
OUTPUT = "-"


class Command(BaseCommand):
    help = "The datasets of the running platform: list, templates, import, run, export. Ctrl-C leaves a job; it goes on."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        listing = actions.add_parser("list", help="datasets with their newest versions")
        listing.add_argument("--q", metavar="TEXT", help="with this in their name")
        for name in ("template", "tag"):
            listing.add_argument(f"--{name}")
        listing.add_argument("--archived", action="store_true", help="also those that were put away")
        listing.add_argument("--limit", type=int, default=SHOWN)
        templates = actions.add_parser("templates", help="what datasets can be made with, or one template's fields")
        templates.add_argument("template", nargs="?")
        self._add_import(actions.add_parser("import", help="read a file into a dataset"))
        self._add_run(actions.add_parser("run", help="make a dataset, or its next version, with a template"))
        export = actions.add_parser("export", help="write a version to a file")
        export.add_argument("version", help="ds_… for the newest, ds_…@2 for one of them")
        export.add_argument("file", nargs="?", help=f"default: a name of its own here; {OUTPUT} writes to the terminal")
        export.add_argument("--format", choices=EXPORTS, default="jsonl")
        export.add_argument("--split", choices=SPLITS, default="")
        export.add_argument("--force", action="store_true", help="replace the file if it is there")

    def _add_import(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument("--format", choices=FORMATS, default="auto")
        parser.add_argument("--column", action="append", metavar="OURS=THEIRS", help="user=question, assistant=reply, …")
        parser.add_argument("--skip-bad-rows", action="store_true", help="import the others; without it a bad row stops all")
        parser.add_argument("--distinct", action="store_true", help="drop rows that say the same as an earlier one")
        parser.add_argument("--near-duplicates", type=float, metavar="SHARE", help="drop rows that overlap by this share")
        parser.add_argument("--valid-fraction", type=float)
        _add_names(parser)
        following.add_arguments(parser)

    def _add_run(self, parser: CommandParser) -> None:
        parser.add_argument("template")
        parser.add_argument("fields", nargs="*", metavar="FIELD=VALUE", help="a field of the template; FIELD=@FILE reads a file")
        parser.add_argument("--model")
        for name, kind in (("rows", int), ("seed", int), ("temperature", float), ("top-p", float), ("valid-fraction", float)):
            parser.add_argument(f"--{name}", type=kind)
        parser.add_argument("--filter", action="append", metavar="NAME=VALUE", help="repetition=true, min_chars=20, …")
        parser.add_argument("--resume", metavar="DATASET", help="make this dataset's next version, with its finished calls")
        parser.add_argument(
            "--preview",
            type=int,
            nargs="?",
            const=PREVIEW_ROWS,
            metavar="SOURCES",
            help="try it on the first, and see a forecast",
        )
        _add_names(parser)
        following.add_arguments(parser)

    def handle(self, *args: Any, action: str, **given: Any) -> None:
        self._screen = terminal.screen(self.stdout)
        with terminal.client() as client:
            getattr(self, f"_{action}")(client, given)

    # Looking -------------------------------------------------------------------------------------------------

    def _list(self, client: httpx.Client, given: dict[str, Any]) -> None:
        wanted = {name: given[name] for name in ("q", "template", "tag", "limit") if given[name] is not None}
        if given["archived"]:
            wanted["archived"] = "true"
        found = terminal.asked(client, "GET", "/api/datasets", params=wanted)
        table = Table("dataset", "name", "template", "version", "state", "rows", "tags")
        for dataset in found["datasets"]:
            latest = dataset["latest"] or {}
            rows = latest.get("counts", {}).get("accepted", "")
            name, tags = terminal.printable(dataset["name"][:60]), terminal.printable(" ".join(dataset["tags"]))
            version = str(latest.get("version", ""))
            table.add_row(dataset["id"], name, dataset["template"], version, latest.get("state", ""), str(rows), tags)
        self._screen.print(table)
        if found["has_more"]:
            self.stdout.write("there are more; --limit shows them")

    def _templates(self, client: httpx.Client, given: dict[str, Any]) -> None:
        templates = terminal.asked(client, "GET", "/api/dataset/templates")["templates"]
        if given["template"] is None:
            table = Table("template", "what it does", "model")
            for template in templates:
                told = template["description"]
                if reason := template.get("unavailable"):
                    told = f"{told} Not here: {reason}"
                table.add_row(template["id"], told, "yes" if template["needs_llm"] else "")
            self._screen.print(table)
            return
        template = next((template for template in templates if template["id"] == given["template"]), None)
        if template is None:
            raise CommandError(f"there is no template {given['template']!r}; see: {terminal.program()} datasets templates")
        self.stdout.write(template["description"])
        table = Table("field", "type", "default", "about")
        for field in template["fields"]:
            default = "needed" if field["required"] else str(field.get("default", ""))
            choices = f": {', '.join(field['choices'])}" if field.get("choices") else ""
            hint = f" ({field['hint']})" if field.get("hint") else ""
            table.add_row(field["name"], field["type"], default, f"{field['label']}{choices}{hint}")
        self._screen.print(table)

    # Making --------------------------------------------------------------------------------------------------

    def _import(self, client: httpx.Client, given: dict[str, Any]) -> None:
        path: Path = given["file"]
        body = {name: given[name] for name in ("format", "distinct")}
        body |= {"on_bad_rows": "skip" if given["skip_bad_rows"] else "refuse", **_named(given)}
        body |= {name: given[name] for name in ("near_duplicates", "valid_fraction") if given[name] is not None}
        if given["column"]:
            body["columns"] = dict(map(_pair, given["column"]))
        file = self._upload(client, path)
        try:
            made = terminal.asked(client, "POST", "/api/datasets/import", json={"name": path.name, **body, "file_id": file})
        except CommandError:
            with suppress(CommandError):
                terminal.asked(client, "DELETE", f"/v1/files/{file}")
            raise
        self.stdout.write(f"{made['job_id']} reads {terminal.printable(path.name)} into {made['dataset_id']}")
        self._follow(client, made, given)

    def _upload(self, client: httpx.Client, path: Path) -> str:
        """Id of the file on the platform."""
        try:
            with self._bar() as bar, bar.open(path, "rb", description=f"sending {path.name}") as content:
                sent = {"file": (path.name, content)}
                return str(terminal.asked(client, "POST", "/v1/files", data={"purpose": "user_data"}, files=sent)["id"])
        except OSError as error:
            raise CommandError(f"{path}: {(error.strerror or str(error)).lower()}") from None

    def _run(self, client: httpx.Client, given: dict[str, Any]) -> None:
        body = {"template": given["template"], "inputs": dict(map(_field, given["fields"])), **_named(given)}
        names = ("model", "rows", "seed", "temperature", "top_p", "valid_fraction", "resume")
        body |= {name: given[name] for name in names if given[name] is not None}
        if given["resume"] and not given["fields"]:
            del body["inputs"]
        if given["filter"]:
            body["filters"] = {name: _literal(value) for name, value in map(_pair, given["filter"])}
        if given["preview"] is not None:
            self._preview(client, body, given)
            return
        made = terminal.asked(client, "POST", "/api/dataset/submit", json=body)
        self.stdout.write(f"{made['job_id']} makes version {made['version']} of {made['dataset_id']}")
        self._follow(client, made, given)

    def _follow(self, client: httpx.Client, made: dict[str, Any], given: dict[str, Any]) -> None:
        if given["detach"]:
            return
        result = following.follow(client, made["job_id"], self._screen, cancel_on_interrupt=given["cancel_on_interrupt"])
        dropped = ", ".join(f"{number} {reason}" for reason, number in result["dropped"].items())
        self.stdout.write(
            f"{result['n_train']} train and {result['n_valid']} validation rows{f'; dropped {dropped}' * bool(dropped)}"
        )
        for note in result["notes"]:
            self.stdout.write(terminal.printable(note))
        self.stdout.write(f"{terminal.program()} datasets export {result['dataset_id']}@{result['version']}")

    def _preview(self, client: httpx.Client, body: dict[str, Any], given: dict[str, Any]) -> None:
        made = terminal.asked(client, "POST", "/api/dataset/preview", json={**body, "preview_rows": given["preview"]})
        self.stdout.write(f"{made['job_id']} tries {given['template']}")
        if given["detach"]:
            return
        told = following.follow(client, made["job_id"], self._screen, cancel_on_interrupt=given["cancel_on_interrupt"])
        for row in told["rows"]:
            says = row["reason"] or row["state"]
            self.stdout.write(terminal.printable(f"\n{row['source']} {says} {row['detail'] or ''}".rstrip()))
            self.stdout.write(terminal.printable(json.dumps(row["content"], ensure_ascii=False)[:EXCERPT]))
        expected = told["forecast"]
        rows, seconds = expected["rows"], expected["seconds"]
        self.stdout.write(
            f"\nall of it: {rows['expected']} rows ({rows['low']} to {rows['high']}), {expected['calls']} calls, "
            f"{expected['completion_tokens']} tokens written, {seconds['low']:g} to {seconds['high']:g} s"
        )

    # Taking away ---------------------------------------------------------------------------------------------

    def _export(self, client: httpx.Client, given: dict[str, Any]) -> None:
        dataset, _, number = given["version"].partition("@")
        wanted = {"format": given["format"], "split": given["split"], "version": number}
        path = f"/api/datasets/{quote(dataset, safe='')}/export"
        try:
            with client.stream("GET", path, params={name: value for name, value in wanted.items() if value}) as answer:
                if not answer.is_success:
                    raise terminal.explained(answer)
                if given["file"] == OUTPUT:
                    for piece in answer.iter_bytes():
                        sys.stdout.buffer.write(piece)
                    sys.stdout.buffer.flush()
                    return
                said = answer.headers["Content-Disposition"].partition('filename="')[2].rstrip('"')
                target = Path(given["file"] or Path(said).name)
                self._keep(answer, target, replace=given["force"])
        except httpx.TransportError:
            raise CommandError("the export was cut off, and nothing was kept; is the platform running?") from None
        except OSError as error:
            raise CommandError(f"{error.filename or 'the file'}: {(error.strerror or str(error)).lower()}") from None
        self.stdout.write(f"{target}: {target.stat().st_size} bytes")

    def _keep(self, answer: httpx.Response, target: Path, *, replace: bool) -> None:
        """Write the whole answer, or nothing."""
        if target.exists() and not replace:
            raise CommandError(f"{target} is there already; --force replaces it")
        part = target.with_name(f".{target.name}.part")
        try:
            with part.open("wb") as file:
                self._write(answer, file, target.name)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)

    def _write(self, answer: httpx.Response, file: IO[bytes], name: str) -> None:
        with self._bar() as bar:
            task = bar.add_task(f"writing {name}", total=None)
            for piece in answer.iter_bytes():
                file.write(piece)
                bar.update(task, advance=len(piece))

    def _bar(self) -> Progress:
        columns = TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn()
        return Progress(*columns, console=self._screen, transient=True)


def _add_names(parser: CommandParser) -> None:
    parser.add_argument("--name")
    parser.add_argument("--description")
    parser.add_argument("--tag", action="append", dest="tags", metavar="TAG")


def _named(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in ("name", "description", "tags") if given[name] is not None}


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise CommandError(f"{text!r} must be NAME=VALUE")
    return name, value


def _field(text: str) -> tuple[str, str]:
    """A field and its value, which is a file's text after an @."""
    name, value = _pair(text)
    if not value.startswith("@"):
        return name, value
    try:
        return name, Path(value[1:]).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise CommandError(f"{value[1:]} is not UTF-8") from None
    except OSError as error:
        raise CommandError(f"{value[1:]}: {(error.strerror or str(error)).lower()}") from None


def _literal(text: str) -> Any:
    """JSON where it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
