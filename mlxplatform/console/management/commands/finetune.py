"""``manage.py finetune``: teach a model from a dataset, and watch it learn."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from mlxplatform.console import following, options, terminal
from mlxplatform.training import finetuning


class Command(BaseCommand):
    help = "Order the running platform to fine-tune a model, and follow it. Ctrl-C leaves; the training goes on."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        options.add(parser, finetuning.FIELDS, first=("model",))
        following.add_arguments(parser)

    def handle(self, *args: Any, **given: Any) -> None:
        order = options.body_of(given, finetuning.FIELDS)
        with terminal.client() as client:
            made = terminal.asked(client, "POST", "/api/finetune/submit", json=order)
            for warning in made["warnings"]:
                self.stderr.write(terminal.printable(warning))
            # A full fine-tune makes a model of its own name, any other an adapter that is asked by name.
            name = made["model"] or made["name"]
            self.stdout.write(f"{made['job_id']} makes {name}")
            if given["detach"]:
                return
            screen = terminal.screen(self.stdout)
            following.follow(client, made["job_id"], screen, cancel_on_interrupt=given["cancel_on_interrupt"])
        self.stdout.write(f"{name} is ready; ask it: {terminal.program()} chat --model {name} …")
