"""``manage.py quantize``: make a smaller copy of a model and see what it lost."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from mlxplatform.console import following, options, terminal
from mlxplatform.training import quantization

#: Bytes of a megabyte, as sizes of models are told everywhere.
MB = 1e6


class Command(BaseCommand):
    help = "Order the running platform to quantize a model, and follow it. Ctrl-C leaves; the job goes on."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        options.add(parser, quantization.FIELDS, first=("model",))
        following.add_arguments(parser)

    def handle(self, *args: Any, **given: Any) -> None:
        order = options.body_of(given, quantization.FIELDS)
        with terminal.client() as client:
            made = terminal.asked(client, "POST", "/api/quantize/submit", json=order)
            self.stdout.write(f"{made['job_id']} makes {made['model']}")
            if given["detach"]:
                return
            screen = terminal.screen(self.stdout)
            result = following.follow(client, made["job_id"], screen, cancel_on_interrupt=given["cancel_on_interrupt"])
        self.stdout.write(f"{result['model']}: {result['bits_per_weight']:.2f} bits per weight, {result['bytes'] / MB:.1f} MB")
        lost = ((result.get("quality") or {}).get("kl") or {}).get("mean")
        if lost is not None:
            self.stdout.write(f"differs from the original by {lost:.4f} nats per token on held-out text")
