"""``manage.py chat``: talk to a model of the running platform from the terminal."""

from __future__ import annotations

import json
import sys
from typing import Any

import httpx
from django.core.management.base import BaseCommand, CommandError, CommandParser

from mlxplatform.console import terminal


class Command(BaseCommand):
    help = "Chat with a model of the running platform. Without a message, a conversation; an empty line ends it."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("message", nargs="*")
        parser.add_argument("--model", default=None)
        parser.add_argument("--system", default=None)
        parser.add_argument("--temperature", type=float, default=None)
        parser.add_argument("--max-tokens", type=int, default=None)

    def handle(self, *args: Any, **options: Any) -> None:
        turns = [{"role": "system", "content": options["system"]}] if options["system"] else []
        with terminal.client() as client:
            try:
                if options["message"]:
                    self._say(client, turns, " ".join(options["message"]), options)
                    return
                while said := self._ask():
                    self._go_on(client, turns, said, options)
            except httpx.TransportError:
                raise terminal.unreachable() from None
            except KeyboardInterrupt:
                self.stdout.write("")

    def _ask(self) -> str:
        try:
            return input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return ""

    def _go_on(self, client: httpx.Client, turns: list[dict[str, str]], said: str, options: dict[str, Any]) -> None:
        """One turn of a conversation; an answer that failed is told, and its question forgotten."""
        before = len(turns)
        try:
            self._say(client, turns, said, options)
        except CommandError as error:
            del turns[before:]
            self.stderr.write(str(error))

    def _say(self, client: httpx.Client, turns: list[dict[str, str]], said: str, options: dict[str, Any]) -> None:
        turns.append({"role": "user", "content": said})
        body = {name: options[name] for name in ("model", "temperature", "max_tokens") if options[name] is not None}
        answer: list[str] = []
        with client.stream("POST", "/v1/chat/completions", json={**body, "messages": turns, "stream": True}) as response:
            if response.status_code != 200:
                raise terminal.explained(response)
            for frame in terminal.frames(response):
                if frame.data == "[DONE]":
                    break
                chunk = json.loads(frame.data)
                if "error" in chunk:
                    self.stdout.write("")
                    raise CommandError(chunk["error"]["message"])
                for choice in chunk["choices"]:
                    text = choice["delta"].get("content") or ""
                    answer.append(text)
                    self.stdout.write(terminal.printable(text), ending="")
                    self.stdout.flush()
        self.stdout.write("")
        turns.append({"role": "assistant", "content": "".join(answer)})
