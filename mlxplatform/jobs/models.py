"""SQL truth about background work: jobs, their numbered events, and the worker processes which own them.

State changes only through :mod:`mlxplatform.jobs.moves`; nothing else writes ``state``, ``owner``,
``fence`` or ``last_seq``.
"""

from __future__ import annotations

import secrets

from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.utils import timezone

from mlxplatform.jobs.states import STATES


def new_id() -> str:
    return "job_" + secrets.token_hex(8)


class Job(models.Model):
    """One piece of durable background work."""

    id = models.CharField(primary_key=True, max_length=20, default=new_id, editable=False)
    kind = models.CharField(max_length=40)
    state = models.CharField(max_length=12, default="queued", choices=[(state, state) for state in STATES])
    #: Full name of the broker queue whose workers may run it, e.g. ``cpu`` or ``gpujobs.local``.
    queue = models.CharField(max_length=80)
    config = models.JSONField(default=dict, encoder=DjangoJSONEncoder)
    progress = models.FloatField(default=0.0)
    message = models.TextField(default="", blank=True)
    error = models.TextField(default="", blank=True)
    error_code = models.CharField(max_length=64, default="", blank=True)
    result = models.JSONField(null=True, blank=True, encoder=DjangoJSONEncoder)
    #: Higher runs first; within one priority first come, first served.
    priority = models.SmallIntegerField(default=0)
    #: Times a worker began it, counted before any work.
    attempts = models.PositiveIntegerField(default=0)
    #: Attempts after which an unexplained error is final.
    max_attempts = models.PositiveIntegerField(default=3)
    #: Attempts in a row that ended without progress by a lost owner, which at the kind's limit quarantines the job as
    #: ``poisoned``, or by a failure that may pass.
    deaths = models.PositiveIntegerField(default=0)
    #: Progress when the present attempt began: more than this at a death means the death was not fruitless.
    claimed_progress = models.FloatField(default=0.0)
    owner = models.CharField(max_length=64, default="", blank=True)
    #: Grows with every claim; a write carrying an older number is refused.
    fence = models.PositiveBigIntegerField(default=0)
    #: What a person asked of a running job besides cancelling: "" or "pause".
    wish = models.CharField(max_length=8, default="", blank=True)
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    #: Not to be started before this (retry back-off, delayed jobs).
    due_at = models.DateTimeField(default=timezone.now)
    #: Failed with ``deadline_exceeded`` when it has not ended by then.
    deadline_at = models.DateTimeField(null=True, blank=True)
    #: When a message for it was last given to the broker; null: never.
    enqueued_at = models.DateTimeField(null=True, blank=True)
    idempotency_key = models.CharField(max_length=255, null=True, blank=True)
    #: Hash of kind and config, so that a key reused for other work is refused.
    digest = models.CharField(max_length=64, default="", blank=True)
    project = models.CharField(max_length=64, default="default")
    created_by = models.CharField(max_length=150, default="", blank=True)
    #: Jobs of one lane (not empty) run one at a time, whatever their kind.
    lane = models.CharField(max_length=120, default="", blank=True)
    parent = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="children")
    #: Jobs which must be done first.
    after = models.ManyToManyField("self", symmetrical=False, blank=True, related_name="dependents")
    #: Number of the newest event.
    last_seq = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["project", "idempotency_key"],
                condition=models.Q(idempotency_key__isnull=False),
                name="job_idempotency_key",
            ),
            models.CheckConstraint(condition=models.Q(state__in=STATES), name="job_state_is_known"),
        ]
        indexes = [
            models.Index(fields=["-created_at", "-id"], name="job_newest"),
            models.Index(fields=["kind", "-created_at", "-id"], name="job_kind_newest"),
            models.Index(fields=["state", "-created_at", "-id"], name="job_state_newest"),
            models.Index(fields=["project", "-created_at", "-id"], name="job_project_newest"),
            models.Index(fields=["queue", "state", "-priority", "created_at"], name="job_claim_order"),
            models.Index(fields=["owner", "state"], name="job_owner"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


class JobEvent(models.Model):
    """One numbered fact about a job. ``seq`` counts from 1 without gaps and is never reused."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events", db_index=False)
    seq = models.PositiveBigIntegerField()
    type = models.CharField(max_length=16)
    payload = models.JSONField(default=dict, encoder=DjangoJSONEncoder)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["job", "seq"]
        constraints = [models.UniqueConstraint(fields=["job", "seq"], name="job_event_seq")]

    def __str__(self) -> str:
        return f"{self.job_id}#{self.seq} {self.type}"


class Worker(models.Model):
    """A live worker process. It counts ``beats`` up; who stops counting is dead and loses what it owns."""

    id = models.CharField(primary_key=True, max_length=64)
    queue = models.CharField(max_length=80)
    machine = models.CharField(max_length=128)
    pid = models.PositiveIntegerField()
    threads = models.PositiveIntegerField(default=1)
    beats = models.PositiveBigIntegerField(default=0)
    started_at = models.DateTimeField(default=timezone.now)
    heartbeat_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return self.id


class QueuePause(models.Model):
    """A queue from which nothing new is started until the row is deleted."""

    queue = models.CharField(primary_key=True, max_length=80)
    paused_by = models.CharField(max_length=150, default="", blank=True)
    paused_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return self.queue
