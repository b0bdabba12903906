"""What an actor's name says: ``user:<name>`` is a person, ``key:<id>`` a key, ``local`` the single user of a machine."""

from __future__ import annotations

PERSON, KEY = "user:", "key:"


def key_of(actor: str) -> str:
    """Id of the key an actor is; "" for anybody else."""
    return actor.removeprefix(KEY) if actor.startswith(KEY) else ""


def is_named(actor: str) -> bool:
    """Whether this is the name of a person or a key."""
    return actor.startswith((PERSON, KEY)) and bool(actor.partition(":")[2])
