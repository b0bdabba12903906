"""What an actor's name says: ``user:<name>`` is a person, ``key:<id>`` a key, ``local`` the single user of a machine,
``schedule:<id>`` a schedule, and ``schedule:<id>/key:<id>`` one that a key made and pays for."""

from __future__ import annotations

PERSON, KEY, SCHEDULE = "user:", "key:", "schedule:"
#: Between a schedule and the key behind it. Ids of schedules are ours and have none; names of people might.
_FOR = "/"


def key_of(actor: str) -> str:
    """Id of the key an actor is or acts for; "" for anybody else."""
    if actor.startswith(SCHEDULE):
        actor = actor.partition(_FOR)[2]
    return actor.removeprefix(KEY) if actor.startswith(KEY) else ""


def is_named(actor: str) -> bool:
    """Whether this is the name of a person or a key."""
    return actor.startswith((PERSON, KEY)) and bool(actor.partition(":")[2])


def of_schedule(schedule_id: str, maker: str) -> str:
    """The name under which a schedule starts jobs. It names the key, so that jobs are known as its work, and
    charged to it, also when the schedule is gone."""
    return f"{SCHEDULE}{schedule_id}" + (f"{_FOR}{maker}" if maker.startswith(KEY) else "")
