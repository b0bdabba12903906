"""People: who they are to the platform (a role, a project), made, changed and helped back in.

A person is a Django user with one of the groups in :data:`~mlxplatform.accounts.scopes.ROLES` and, unless an
administrator, one project whose work they see. It knows no HTTP; pages and the command line call it.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction

from mlxplatform.accounts import audit
from mlxplatform.accounts.models import DEFAULT_PROJECT, Person
from mlxplatform.accounts.scopes import ROLES, SCOPES
from mlxplatform.inference.contract import Refusal

ADMIN_ROLE = "admin"
#: What a project may be called; the same rule as for keys.
PROJECT_NAME = re.compile(r"^[a-z0-9][a-z0-9_-]{0,63}\Z")
_USER_NAME = re.compile(r"^[A-Za-z0-9_.@+-]{1,150}\Z")
#: Bytes of randomness in a password made here: 72 bits, twelve characters to type.
PASSWORD_BYTES = 9


@dataclass(frozen=True)
class Card:
    """A person as shown to administrators."""

    name: str
    role: str
    project: str
    active: bool
    last_seen: Any


def scopes_of(user: Any) -> frozenset[str]:
    """What a signed-in person may do: everything for a superuser, else what their groups allow."""
    if not user.is_active:
        return frozenset()
    if user.is_superuser:
        return frozenset(SCOPES)
    groups = user.groups.values_list("name", flat=True)
    return frozenset(scope for name in groups for scope in ROLES.get(name, ()))


def is_active(name: str) -> bool:
    return get_user_model().objects.filter(username=name, is_active=True).exists()


def project_of(user: Any) -> str:
    """The project a person works in."""
    return Person.objects.filter(user_id=user.pk).values_list("project", flat=True).first() or DEFAULT_PROJECT


def everybody() -> list[Card]:
    users = get_user_model().objects.prefetch_related("groups").select_related("person").order_by("username")
    return [
        Card(
            name=user.get_username(),
            role=ADMIN_ROLE if user.is_superuser else next((g.name for g in user.groups.all() if g.name in ROLES), "nothing yet"),
            project=user.person.project if hasattr(user, "person") else DEFAULT_PROJECT,
            active=user.is_active,
            last_seen=user.last_login,
        )
        for user in users
    ]


@transaction.atomic
def add(name: str, role: str, project: str, *, actor: str) -> str:
    """Make a person; the value is their password, which nothing can show again.

    Raises:
        Refusal: a name that is taken or odd, an unknown role, a project name that cannot be.
    """
    users = get_user_model().objects
    if not _USER_NAME.match(name):
        raise Refusal(400, "invalid_value", "name must be 1 to 150 letters, digits or any of _.@+-", param="name")
    if users.filter(username__iexact=name).exists():
        raise Refusal(409, "name_taken", "there is a person of this name already", param="name")
    _check(role, project)
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    user = users.create_user(name, password=password)
    _place(user, role, project)
    audit.record(actor, "person.add", name, project=project, after={"role": role, "project": project})
    return password


@transaction.atomic
def change(name: str, role: str, project: str, *, actor: str) -> None:
    """Give a person another role or project.

    Raises:
        Refusal: see :func:`add`; nobody of this name; the last administrator would be gone.
    """
    user = find(name)
    _check(role, project)
    if role != ADMIN_ROLE:
        _keep_an_administrator(user)
    before = {"role": _role(user), "project": project_of(user)}
    _place(user, role, project)
    audit.record(actor, "person.change", name, project=project, before=before, after={"role": role, "project": project})


@transaction.atomic
def set_active(name: str, active: bool, *, actor: str) -> None:
    """Let a person in or keep them out. Their open sessions end with the next request."""
    user = find(name)
    if not active:
        _keep_an_administrator(user)
    user.is_active = active
    user.save(update_fields=["is_active"])
    audit.record(actor, "person.enable" if active else "person.disable", name)


@transaction.atomic
def reset_password(name: str, *, actor: str, password: str = "") -> str:
    """Give a person the password, or a new random one; returns it. Every session of theirs ends."""
    user = find(name)
    if password:
        check_password(password, user)
    password = password or secrets.token_urlsafe(PASSWORD_BYTES)
    user.set_password(password)
    user.is_active = True
    user.save(update_fields=["password", "is_active"])
    audit.record(actor, "person.password", name)
    return password


def check_password(password: str, user: Any) -> None:
    """Raises:
    Refusal: too short, too common or too like the name; the message says which.
    """
    try:
        validate_password(password, user)
    except ValidationError as problems:
        raise Refusal(400, "weak_password", " ".join(problems.messages), param="password") from None


def find(name: str) -> Any:
    user = get_user_model().objects.filter(username=name).first()
    if user is None:
        raise Refusal(404, "person_not_found", "there is nobody of this name", param="name")
    return user


def _check(role: str, project: str) -> None:
    if role not in ROLES:
        raise Refusal(400, "invalid_value", f"role must be one of {', '.join(ROLES)}", param="role")
    if not PROJECT_NAME.match(project):
        raise Refusal(400, "invalid_value", "project must be lower-case letters, digits, - or _, at most 64", param="project")


def _place(user: Any, role: str, project: str) -> None:
    user.groups.set([Group.objects.get(name=role)])
    # Raw rows in the admin know no projects, so only administrators may look at them.
    user.is_staff = user.is_superuser = role == ADMIN_ROLE
    user.save(update_fields=["is_staff", "is_superuser"])
    Person.objects.update_or_create(user=user, defaults={"project": project})


def _role(user: Any) -> str:
    return ADMIN_ROLE if user.is_superuser else user.groups.values_list("name", flat=True).first() or ""


def _keep_an_administrator(user: Any) -> None:
    others = get_user_model().objects.filter(is_superuser=True, is_active=True).exclude(pk=user.pk)
    if user.is_superuser and user.is_active and not others.exists():
        raise Refusal(409, "last_administrator", "this is the only administrator; make another one first", param="role")
