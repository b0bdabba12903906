"""Schedules as JSON: what the API shows, and what it accepts."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.core.exceptions import ValidationError
from django.utils import timezone

from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs.models import Job
from mlxplatform.schedules import cron
from mlxplatform.schedules.models import Firing, Schedule

#: Fields of a request: type, and whether a new schedule needs it.
FIELDS: dict[str, tuple[type, bool]] = {
    "name": (str, True),
    "kind": (str, True),
    "cron": (str, True),
    "config": (dict, False),
    "timezone": (str, False),
    "misfire": (str, False),
    "grace_seconds": (int, False),
    "paused": (bool, False),
}
#: Next times shown.
SHOWN_AHEAD = 5
MOST_GRACE_SECONDS = 7 * 86400


def moment(value: dt.datetime | None) -> str | None:
    return value.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if value else None


def schedule_json(schedule: Schedule) -> dict[str, Any]:
    job = (
        Job.objects.filter(pk=schedule.last_job).values("id", "state", "error", "ended_at").first() if schedule.last_job else None
    )
    try:
        ahead = [] if schedule.paused else cron.upcoming(schedule.cron, schedule.timezone, timezone.now(), SHOWN_AHEAD)
    except cron.BadSchedule:
        ahead = []
    return {
        "id": schedule.id,
        "name": schedule.name,
        "kind": schedule.kind,
        "config": schedule.config,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "misfire": schedule.misfire,
        "grace_seconds": schedule.grace_seconds,
        "paused": schedule.paused,
        "next_at": moment(schedule.next_at),
        "next_times": [moment(time) for time in ahead],
        "last_at": moment(schedule.last_at),
        "last_job": {**job, "ended_at": moment(job["ended_at"])} if job else None,
        "created_at": moment(schedule.created_at),
    }


def firing_json(firing: Firing) -> dict[str, Any]:
    return {
        "due_at": moment(firing.due_at),
        "at": moment(firing.at),
        "outcome": firing.outcome,
        "job": firing.job or None,
        "note": firing.note,
        "by": firing.by,
    }


def fill(schedule: Schedule, body: dict[str, Any], *, new: bool) -> Schedule:
    """Put a request's fields into a row, checked.

    Raises:
        Refusal: naming the field and what is allowed.
    """
    for name, value in body.items():
        if name not in FIELDS:
            raise Refusal(400, "unknown_field", f"the fields are {', '.join(FIELDS)}", param=name)
        wanted = FIELDS[name][0]
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            spoken = {str: "a text", dict: "an object", int: "a whole number", bool: "true or false"}[wanted]
            raise Refusal(400, "invalid_value", f"{name} must be {spoken}", param=name)
        setattr(schedule, name, value.strip() if isinstance(value, str) else value)
    for name, (_, needed) in FIELDS.items():
        if new and needed and not body.get(name):
            raise Refusal(400, "missing_required_parameter", f"{name} is needed", param=name)
    if not schedule.name or len(schedule.name) > 100:
        raise Refusal(400, "invalid_value", "name must have 1 to 100 characters", param="name")
    if schedule.misfire not in dict(Schedule.MISFIRES):
        raise Refusal(400, "invalid_value", f"misfire must be one of {', '.join(dict(Schedule.MISFIRES))}", param="misfire")
    if not 0 <= schedule.grace_seconds <= MOST_GRACE_SECONDS:
        raise Refusal(400, "invalid_value", f"grace_seconds must be from 0 to {MOST_GRACE_SECONDS}", param="grace_seconds")
    try:
        schedule.clean()
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        raise Refusal(400, "invalid_value", messages[0], param=field) from None
    twin = Schedule.objects.filter(project=schedule.project, name=schedule.name).exclude(pk=schedule.pk)
    if twin.exists():
        raise Refusal(409, "name_taken", "there is a schedule of this name", param="name")
    schedule.plan()
    return schedule
