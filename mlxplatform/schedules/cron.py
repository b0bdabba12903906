"""When a schedule is due: cron expressions in a time zone, across daylight saving and sleep. Pure functions.

Times of day that a clock change skips happen right after the gap; those it repeats happen once. (Jobs that
run every hour or minute simply keep running.)
"""

from __future__ import annotations

import datetime as dt
from itertools import islice
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

#: Longest expression read.
EXPRESSION_LIMIT = 100


class BadSchedule(ValueError):
    """The expression or the time zone cannot be used; ``field`` says which."""

    def __init__(self, field: str, message: str):
        super().__init__(message)
        self.field = field
        self.message = message


def zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadSchedule("timezone", "this is not a time zone; use a name like Europe/Lisbon or UTC") from None


def upcoming(expression: str, timezone: str, after: dt.datetime, count: int = 1) -> list[dt.datetime]:
    """The next times after an instant, in UTC. Fewer than ``count`` when the expression runs out (30 February).

    Raises:
        BadSchedule: the expression or the zone cannot be used.
    """
    return _times(expression, timezone, after, count, reverse=False)


def _times(expression: str, timezone: str, start: dt.datetime, count: int, *, reverse: bool) -> list[dt.datetime]:
    if len(expression) > EXPRESSION_LIMIT or len(expression.split()) != 5:
        raise BadSchedule("cron", "use five fields: minute hour day-of-month month day-of-week, e.g. 0 3 * * *")
    local = start.astimezone(zone(timezone))
    try:
        # cronsim works in whole minutes of the zone and ends on its own when nothing can match.
        return [moment.astimezone(dt.UTC) for moment in islice(CronSim(expression, local, reverse=reverse), count)]
    except CronSimError:
        raise BadSchedule("cron", "this cron expression cannot be read or never comes due; 0 3 * * * is 03:00 each day") from None


def latest_time(expression: str, timezone: str, until: dt.datetime) -> dt.datetime | None:
    """The newest time that is not after an instant."""
    # Counting back leaves the starting instant out, and a time is a whole minute.
    found = _times(expression, timezone, until + dt.timedelta(seconds=1), 1, reverse=True)
    return found[0] if found else None


def next_time(expression: str, timezone: str, after: dt.datetime) -> dt.datetime | None:
    found = upcoming(expression, timezone, after)
    return found[0] if found else None
