"""Batches and the outcome of each of their lines. One state machine; OpenAI's and Anthropic's words are views of it."""

from __future__ import annotations

import secrets

from django.db import models
from django.utils import timezone

from mlxplatform.files.models import StoredFile
from mlxplatform.jobs.models import Job

VALIDATING, IN_PROGRESS, FINALIZING, CANCELLING = "validating", "in_progress", "finalizing", "cancelling"
COMPLETED, FAILED, EXPIRED, CANCELLED = "completed", "failed", "expired", "cancelled"

#: Nothing happens to these any more.
ENDED = frozenset({COMPLETED, FAILED, EXPIRED, CANCELLED})
STATUSES = (VALIDATING, IN_PROGRESS, FINALIZING, CANCELLING, COMPLETED, FAILED, EXPIRED, CANCELLED)

#: When each status was reached is kept in ``<status>_at``.
MOVES: dict[str, frozenset[str]] = {
    VALIDATING: frozenset({IN_PROGRESS, FAILED, CANCELLING, CANCELLED, EXPIRED, COMPLETED}),
    IN_PROGRESS: frozenset({FINALIZING, CANCELLING, CANCELLED, EXPIRED, COMPLETED}),
    FINALIZING: frozenset({COMPLETED, CANCELLING, CANCELLED, EXPIRED}),
    CANCELLING: frozenset({CANCELLED}),
    COMPLETED: frozenset(),
    FAILED: frozenset(),
    EXPIRED: frozenset(),
    CANCELLED: frozenset(),
}


def new_openai_id() -> str:
    return "batch_" + secrets.token_hex(12)


def new_anthropic_id() -> str:
    return "msgbatch_" + secrets.token_hex(12)


class Batch(models.Model):
    """Many requests given at once. ``dialect`` is who asked: openai or anthropic."""

    id = models.CharField(primary_key=True, max_length=40)
    dialect = models.CharField(max_length=10)
    endpoint = models.CharField(max_length=64)
    status = models.CharField(max_length=12, default=VALIDATING, choices=[(status, status) for status in STATUSES])
    job = models.OneToOneField(Job, null=True, on_delete=models.SET_NULL, related_name="batch")
    input_file = models.ForeignKey(StoredFile, null=True, on_delete=models.SET_NULL, related_name="+")
    #: The id as given; it outlives the file.
    input_file_name = models.CharField(max_length=40)
    output_file = models.ForeignKey(StoredFile, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    error_file = models.ForeignKey(StoredFile, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    completion_window = models.CharField(max_length=8, default="24h")
    metadata = models.JSONField(null=True, blank=True)
    output_seconds = models.PositiveIntegerField(null=True, blank=True)
    model = models.CharField(max_length=200, default="", blank=True)
    errors = models.JSONField(null=True, blank=True)
    total = models.PositiveIntegerField(default=0)
    succeeded = models.PositiveIntegerField(default=0)
    errored = models.PositiveIntegerField(default=0)
    cancelled = models.PositiveIntegerField(default=0)
    expired = models.PositiveIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)
    reasoning_tokens = models.PositiveBigIntegerField(default=0)
    #: When it will be done, with an interval; see forecast.py. Null before there is anything to say.
    forecast = models.JSONField(null=True, blank=True)
    idempotency_key = models.CharField(max_length=255, null=True, blank=True)
    project = models.CharField(max_length=64, default="default")
    created_by = models.CharField(max_length=150, default="", blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField()
    in_progress_at = models.DateTimeField(null=True, blank=True)
    finalizing_at = models.DateTimeField(null=True, blank=True)
    cancelling_at = models.DateTimeField(null=True, blank=True)
    completed_at = models.DateTimeField(null=True, blank=True)
    failed_at = models.DateTimeField(null=True, blank=True)
    expired_at = models.DateTimeField(null=True, blank=True)
    cancelled_at = models.DateTimeField(null=True, blank=True)
    #: Deleted by its owner (Anthropic only); invisible from then on.
    deleted_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [models.Index(fields=["project", "dialect", "-created_at", "-id"], name="batch_newest")]
        constraints = [
            models.UniqueConstraint(
                fields=["project", "idempotency_key"],
                condition=models.Q(idempotency_key__isnull=False),
                name="batch_idempotency_key",
            )
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def finished_lines(self) -> int:
        return self.succeeded + self.errored + self.cancelled + self.expired


class BatchLine(models.Model):
    """The one outcome of one line, written once, as the bytes a client reads. Removed when the files are complete."""

    SUCCEEDED, ERRORED, CANCELLED, EXPIRED = "succeeded", "errored", "cancelled", "expired"

    batch = models.ForeignKey(Batch, on_delete=models.CASCADE, related_name="lines", db_index=False)
    #: Physical line in the input file.
    number = models.PositiveIntegerField()
    outcome = models.CharField(max_length=10)
    text = models.TextField()

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["batch", "number"], name="batch_line_once")]
        indexes = [models.Index(fields=["batch", "outcome", "id"], name="batch_line_order")]

    def __str__(self) -> str:
        return f"{self.batch_id}:{self.number}"
