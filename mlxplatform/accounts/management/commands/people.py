"""``manage.py people``: add people, list them, change their role or project, give them a new password."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from mlxplatform.accounts import people
from mlxplatform.accounts.models import DEFAULT_PROJECT
from mlxplatform.accounts.scopes import ROLES
from mlxplatform.inference.contract import Refusal

#: Who acts in the audit log: whoever may run commands on this machine.
_ACTOR = "local"


class Command(BaseCommand):
    help = "Who may sign in: add, list, change, password (a new one, printed once), disable, enable."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        actions.add_parser("list", help="show everybody")
        for action, words in (("add", "make a person and print their password once"), ("change", "another role or project")):
            one = actions.add_parser(action, help=words)
            one.add_argument("name")
            one.add_argument("--role", choices=list(ROLES), default="member")
            one.add_argument("--project", default=DEFAULT_PROJECT)
        for action, words in (
            ("password", "give a new password, print it once, and let the person in again"),
            ("disable", "keep a person out"),
            ("enable", "let a person in again"),
        ):
            actions.add_parser(action, help=words).add_argument("name")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self._do(options["action"], options)
        except Refusal as refusal:
            raise CommandError(refusal.message) from None

    def _do(self, action: str, options: dict[str, Any]) -> None:
        name = options.get("name", "")
        if action == "list":
            for person in people.everybody():
                state = "active" if person.active else "kept out"
                self.stdout.write(f"{person.name}  {person.role}  {person.project}  {state}")
        elif action == "add":
            password = people.add(name, options["role"], options["project"], actor=_ACTOR)
            self.stderr.write(f"{name} may sign in. Note the password now, it is not shown again:")
            self.stdout.write(password)
        elif action == "change":
            people.change(name, options["role"], options["project"], actor=_ACTOR)
        elif action == "password":
            self.stdout.write(people.reset_password(name, actor=_ACTOR))
        else:
            people.set_active(name, action == "enable", actor=_ACTOR)
