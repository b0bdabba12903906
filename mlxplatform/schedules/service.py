"""Firing schedules: what the scheduler process does each second, and what a person may ask for."""

from __future__ import annotations

import datetime as dt

import structlog
from django.db import transaction
from django.utils import timezone

from mlxplatform.accounts import actors, quotas
from mlxplatform.accounts.models import ApiKey
from mlxplatform.broker.connections import BROKER_ERRORS
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.states import TERMINAL
from mlxplatform.schedules import cron, starters
from mlxplatform.schedules.models import FIRINGS_KEPT, Firing, Schedule

log = structlog.get_logger(__name__)


def tick(now: dt.datetime | None = None) -> int:
    """Start the jobs of every schedule that is due; returns how many started. Any number of callers do no harm.

    However many times were missed (sleep, downtime), a schedule fires at most once here: missed times are not
    made up one by one. Its misfire policy says whether being late by more than its grace still counts.
    """
    now = now or timezone.now()
    started = 0
    for schedule in Schedule.objects.filter(paused=False, next_at__lte=now).order_by("next_at"):
        try:
            started += _fire_due(schedule, now)
        except cron.BadSchedule as error:
            # A time zone can vanish with an update of the machine; the schedule waits for its owner.
            Schedule.objects.filter(pk=schedule.pk, next_at=schedule.next_at).update(paused=True, next_at=None)
            log.error("schedule_unusable", schedule=schedule.id, reason=error.message)
    return started


def _fire_due(schedule: Schedule, now: dt.datetime) -> int:
    planned = schedule.next_at
    assert planned is not None
    following = cron.next_time(schedule.cron, schedule.timezone, now)
    # The newest time that has passed: of several missed ones it is the one that a run now stands for.
    newest = cron.latest_time(schedule.cron, schedule.timezone, now)
    due = planned if newest is None else max(planned, newest)
    late = (now - due).total_seconds()
    since = f"; missed since {planned:%Y-%m-%d %H:%M} UTC" if due > planned else ""
    unpaid = _unpaid(schedule, schedule.created_by)
    with transaction.atomic():
        taken = Schedule.objects.filter(pk=schedule.pk, next_at=planned, paused=False).update(next_at=following, last_at=now)
        if not taken:
            return 0
        if late > schedule.grace_seconds and schedule.misfire == "skip":
            _record(schedule, due, now, "skipped", note=f"missed by {_spoken(late)}; the policy is to skip{since}")
            return 0
        if unpaid is not None:
            return _fail(schedule, due, now, unpaid.message)
        note = (f"late by {_spoken(late)}" if late > schedule.grace_seconds else "in time" if since else "") + since
        return _start(schedule, due, now, note=note)


def _start(schedule: Schedule, due: dt.datetime, now: dt.datetime, note: str = "", by: str = "") -> int:
    """Submit the job and record it, in the caller's transaction."""
    running = Job.objects.filter(pk=schedule.last_job).exclude(state__in=TERMINAL).values_list("state", flat=True).first()
    if running:
        _record(schedule, due, now, "skipped", note=f"the previous job is still {running}", by=by)
        return 0
    try:
        with transaction.atomic():
            by_whom = by or actors.of_schedule(schedule.id, schedule.created_by)
            job = starters.start(schedule.kind, schedule.config, schedule.project, by_whom, f"{schedule.id}:{due.isoformat()}")
    except (Refusal, LookupError) as error:
        reason = error.message if isinstance(error, Refusal) else f"there is no job of kind {schedule.kind} any more"
        return _fail(schedule, due, now, reason, by)
    Schedule.objects.filter(pk=schedule.pk).update(last_job=job.id)
    _record(schedule, due, now, "started", job=job.id, note=note, by=by)
    log.info("schedule_fired", schedule=schedule.id, kind=schedule.kind, job=job.id)
    return 1


def _unpaid(schedule: Schedule, payer: str) -> Refusal | None:
    """Why the key that would pay for a job may not order it now; people and machines without keys always may."""
    key_id = actors.key_of(payer)
    if not key_id:
        return None
    key = ApiKey.objects.filter(pk=key_id).first()
    if key is None or not key.is_active:
        return Refusal(403, "key_ended", "the key that made this schedule was revoked or has expired; make the schedule anew")
    try:
        if schedule.kind in starters.SPENDING:
            quotas.check_allowance_now(key_id, key.tokens_per_day)
    except Refusal as refusal:
        return refusal
    except BROKER_ERRORS as error:
        # A night's work is worth more than a count.
        log.warning("quota_not_asked", key=key_id, error=type(error).__name__)
    return None


def _fail(schedule: Schedule, due: dt.datetime, now: dt.datetime, reason: str, by: str = "") -> int:
    _record(schedule, due, now, "failed", note=reason, by=by)
    log.error("schedule_failed", schedule=schedule.id, reason=reason)
    return 0


def _record(
    schedule: Schedule, due: dt.datetime, now: dt.datetime, outcome: str, *, job: str = "", note: str = "", by: str = ""
) -> None:
    Firing.objects.create(schedule=schedule, due_at=due, at=now, outcome=outcome, job=job, note=note[:300], by=by)
    kept = schedule.firings.values_list("pk", flat=True)[:FIRINGS_KEPT]
    schedule.firings.exclude(pk__in=list(kept)).delete()


def _spoken(seconds: float) -> str:
    minutes = int(seconds // 60)
    if minutes < 1:
        return f"{int(seconds)} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"


def run_now(schedule: Schedule, by: str) -> Firing:
    """Start a schedule's job at once, paused or not; its regular times stay as they are.

    Raises:
        Refusal: its previous job has not ended, the job was refused, or the asking key's tokens for today are used up.
    """
    if unpaid := _unpaid(schedule, by):
        raise unpaid
    now = timezone.now()
    with transaction.atomic():
        schedule = Schedule.objects.select_for_update().get(pk=schedule.pk)
        Schedule.objects.filter(pk=schedule.pk).update(last_at=now)
        _start(schedule, now, now, note="started by hand", by=by)
        firing = Firing.objects.get(schedule=schedule, due_at=now)
    if firing.outcome == "started":
        return firing
    raise Refusal(
        409 if firing.outcome == "skipped" else 400,
        "schedule_busy" if firing.outcome == "skipped" else "job_refused",
        firing.note,
    )


def set_paused(schedule: Schedule, paused: bool) -> Schedule:
    """Pause or resume. Times that pass during a pause are not made up."""
    schedule.paused = paused
    schedule.plan()
    schedule.save(update_fields=["paused", "next_at"])
    return schedule
