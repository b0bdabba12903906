from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class AccountsConfig(AppConfig):
    name = "mlxplatform.accounts"
    label = "accounts"

    def ready(self) -> None:
        post_migrate.connect(make_groups, sender=self)


def make_groups(**_: Any) -> None:
    """The groups of people that roles are made of; after every migration, so that they are always there."""
    from django.contrib.auth.models import Group

    from mlxplatform.accounts.scopes import ROLES

    for name in ROLES:
        Group.objects.get_or_create(name=name)
