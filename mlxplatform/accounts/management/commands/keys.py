"""``manage.py keys``: make, list, rotate and revoke API keys from the terminal."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from mlxplatform.accounts import keys
from mlxplatform.accounts.models import DEFAULT_PROJECT, ApiKey
from mlxplatform.accounts.scopes import DEFAULT_SCOPES, SCOPES
from mlxplatform.inference.contract import Refusal


class Command(BaseCommand):
    help = "Make, list, rotate and revoke API keys. The first key closes the server to keyless use."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        create = actions.add_parser("create", help="make a key and print its secret once")
        create.add_argument("name")
        create.add_argument("--project", default=DEFAULT_PROJECT)
        create.add_argument("--scope", action="append", choices=list(SCOPES), help="may be given more than once")
        actions.add_parser("list", help="show keys without their secrets")
        for action in ("rotate", "revoke"):
            actions.add_parser(action).add_argument("key_id")

    def handle(self, *args: Any, **options: Any) -> None:
        action = options["action"]
        if action == "create":
            try:
                key, secret = keys.create(options["name"], project=options["project"], scopes=options["scope"] or DEFAULT_SCOPES)
            except Refusal as refusal:
                raise CommandError(refusal.message) from None
            self.stderr.write(f"Key {key.id} for project {key.project}. Copy the secret now, it is not shown again:")
            self.stdout.write(secret)
        elif action == "list":
            for key in ApiKey.objects.all():
                state = "active" if key.is_active else "inactive"
                self.stdout.write(f"{key.id}  {key.prefix}…  {key.project}  {','.join(key.scopes)}  {state}  {key.name}")
        else:
            self._change(action, options["key_id"])

    def _change(self, action: str, key_id: str) -> None:
        key = ApiKey.objects.filter(pk=key_id).first()
        if key is None:
            raise CommandError(f"no key {key_id}; see: manage.py keys list")
        if action == "rotate":
            self.stdout.write(keys.rotate(key))
        else:
            keys.revoke(key)
            self.stdout.write(f"{key_id} is revoked.")
