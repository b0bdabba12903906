"""``manage.py models list|import|pull|delete``: the library from a terminal."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from asgiref.sync import async_to_sync
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from mlxplatform import paths
from mlxplatform.broker.connections import BROKER_ERRORS
from mlxplatform.inference.contract import Refusal
from mlxplatform.library import hub, local_models, publication, removal, starters


class Command(BaseCommand):
    help = "List, import, pull and delete local models."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        actions.add_parser("list", help="models on this machine")
        bring = actions.add_parser("import", help="import the starter models, or a GGUF file")
        bring.add_argument("file", nargs="?", type=Path, help="a .gguf file; without it the starter models")
        bring.add_argument("--id", default="", help="name of the new model")
        pull = actions.add_parser("pull", help="download a model from the Hugging Face hub")
        pull.add_argument("repo", help="owner/name")
        pull.add_argument("--revision", default="main")
        delete = actions.add_parser("delete", help="delete a model of the data directory")
        delete.add_argument("id")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        getattr(self, f"_{action}")(options)

    def _list(self, options: dict[str, Any]) -> None:
        models = local_models.scan(settings.HOME)
        for model in models:
            packed = f"{model.quantization.get('bits')}-bit" if model.quantization else model.dtype
            note = f"  cannot be used: {model.obstacle}" if model.obstacle else f"  context {model.context}"
            self.stdout.write(f"{model.id:40} {model.kind:13} {packed:9} {model.bytes / 1e6:9.1f} MB{note}")
        if not models:
            self.stdout.write("No models yet: run `manage.py models import`.")

    def _import(self, options: dict[str, Any]) -> None:
        try:
            if options["file"] is None:
                made = starters.ensure(settings.HOME, progress=self._progress)
                self.stdout.write(f"Imported {', '.join(made)}." if made else "The starter models are already there.")
                return
            model_id = options["id"] or options["file"].stem.lower()
            if not publication.is_model_id(model_id):
                raise CommandError(f"{model_id!r} is not a model name: use letters, digits, '.', '_' and '-'.")
            models = paths.models_dir(settings.HOME)
            done = starters.import_gguf(options["file"].absolute(), models, model_id, progress=self._progress)
        except starters.ImportFailed as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"{model_id} was already there." if done["existed"] else f"Imported {model_id}.")

    def _pull(self, options: dict[str, Any]) -> None:
        # Progress lines on a terminal, none in a log.
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "0" if self.stderr.isatty() else "1")
        try:
            snapshot = hub.pull(options["repo"], revision=options["revision"])
        except hub.HubError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"Pulled {options['repo']} at {snapshot.revision[:12]} ({snapshot.bytes / 1e6:.1f} MB).")

    def _delete(self, options: dict[str, Any]) -> None:
        try:
            in_memory = async_to_sync(removal.serving)()
        except BROKER_ERRORS:  # nothing runs
            in_memory = set()
        try:
            gone = removal.remove(options["id"], "terminal", in_memory=in_memory)
        except Refusal as refusal:
            raise CommandError(refusal.message) from None
        self.stdout.write(f"Deleted {gone.id}.")

    def _progress(self, event: dict[str, Any]) -> None:
        if event.get("event") == "stage":
            self.stdout.write(f"  {event['name']} {event.get('progress', 0):.0%}")
