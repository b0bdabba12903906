"""``manage.py memory_mcp``: the memory as an MCP server on standard input and output, for agents on this machine."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
from django.core.management.base import BaseCommand, CommandError, CommandParser

from mlxplatform.inference.contract import Refusal
from mlxplatform.memory import mcp
from mlxplatform.memory.orders import find_vault


class Command(BaseCommand):
    help = "Serve the memory to an MCP client over standard input and output."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--vault", default="", help="Name of the vault; not needed while there is one.")
        parser.add_argument("--project", default="default", help="Project the vault belongs to.")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            vault = find_vault(options["vault"], options["project"])
        except Refusal as refusal:
            raise CommandError(refusal.message) from None
        for line in sys.stdin.buffer:
            if not line.strip():
                continue
            try:
                message = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                answer: Any = {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "not valid JSON"}}
            else:
                answer = mcp.answer(vault, message)
            if answer is not None:
                sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
                sys.stdout.buffer.flush()
