"""Schedules as rows: which job to start when, and what became of each time it was due."""

from __future__ import annotations

import secrets

from django.core.exceptions import ValidationError
from django.db import models
from django.utils.timezone import now

from mlxplatform.inference.contract import Refusal
from mlxplatform.schedules import cron, starters

#: Due times remembered per schedule.
FIRINGS_KEPT = 200


def _schedule_id() -> str:
    return f"sched_{secrets.token_hex(8)}"


class Schedule(models.Model):
    """A job to be started by the clock.

    ``next_at`` is the only thing the scheduler looks at; moving it by compare-and-set is what makes a due time
    fire once, however many schedulers run. Two runs of one schedule never overlap.
    """

    MISFIRES = (("skip", "skip what was missed"), ("run_once", "run once for all that was missed"))

    id = models.CharField(primary_key=True, max_length=24, default=_schedule_id, editable=False)
    name = models.CharField(max_length=100)
    project = models.CharField(max_length=64, default="default", db_index=True)
    kind = models.CharField(max_length=40, help_text="Kind of job to start.")
    config = models.JSONField(default=dict, blank=True, help_text="The job's configuration.")
    cron = models.CharField(max_length=100, help_text="minute hour day-of-month month day-of-week, e.g. 0 3 * * *")
    timezone = models.CharField(max_length=64, default="UTC", help_text="Time zone the times are meant in, e.g. Europe/Lisbon.")
    misfire = models.CharField(max_length=8, choices=MISFIRES, default="run_once")
    grace_seconds = models.PositiveIntegerField(default=300, help_text="Lateness up to which a time still counts as met.")
    paused = models.BooleanField(default=False)
    next_at = models.DateTimeField(null=True, blank=True, db_index=True, editable=False)
    last_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_job = models.CharField(max_length=24, default="", blank=True, editable=False)
    created_by = models.CharField(max_length=150, default="", blank=True, editable=False)
    created_at = models.DateTimeField(default=now, editable=False)

    class Meta:
        ordering = ["name", "id"]
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="schedule_name_once")]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """What a form or the API may not save."""
        if self.kind not in starters.names():
            raise ValidationError({"kind": f"this kind of job cannot be scheduled; kinds are {', '.join(starters.names())}"})
        if not isinstance(self.config, dict):
            raise ValidationError({"config": "the configuration must be an object"})
        try:
            starters.check(self.kind, self.config, self.project)
        except Refusal as refusal:
            raise ValidationError(
                {"config": f"{refusal.param}: {refusal.message}" if refusal.param else refusal.message}
            ) from None
        try:
            if cron.next_time(self.cron, self.timezone, now()) is None:
                raise ValidationError({"cron": "this expression never comes due"})
        except cron.BadSchedule as error:
            raise ValidationError({error.field: error.message}) from None

    def plan(self) -> None:
        """Set the next due time from now on; none while paused."""
        self.next_at = None if self.paused else cron.next_time(self.cron, self.timezone, now())


class Firing(models.Model):
    """One due time and what became of it: started, or skipped with the reason."""

    OUTCOMES = ("started", "skipped", "failed")

    schedule = models.ForeignKey(Schedule, on_delete=models.CASCADE, related_name="firings")
    due_at = models.DateTimeField()
    at = models.DateTimeField(default=now)
    outcome = models.CharField(max_length=8)
    job = models.CharField(max_length=24, default="", blank=True)
    note = models.CharField(max_length=300, default="", blank=True)
    by = models.CharField(max_length=150, default="", blank=True)

    class Meta:
        ordering = ["-at", "-id"]
        constraints = [models.UniqueConstraint(fields=["schedule", "due_at"], name="schedule_fires_once")]

    def __str__(self) -> str:
        return f"{self.schedule} {self.due_at:%Y-%m-%d %H:%M}"
