"""Tables of rows. They know their job by id only, so that any kind of job may own rows."""

from __future__ import annotations

import secrets

from django.db import models


def new_chunk_id() -> str:
    return f"chunk_{secrets.token_hex(8)}"


class RowChunk(models.Model):
    """Calls that travel together to one host. At most one owner at a time, told apart by ``fence``.

    queued → running → done, back to queued when its owner died or gave it back, cancelled with its job.
    ``deaths`` counts owners that died without finishing a single call.
    """

    class State(models.TextChoices):
        QUEUED = "queued"
        RUNNING = "running"
        DONE = "done"
        CANCELLED = "cancelled"

    id = models.CharField(primary_key=True, max_length=32, default=new_chunk_id, editable=False)
    job = models.CharField(max_length=32, db_index=True)
    host = models.CharField(max_length=64)
    state = models.CharField(max_length=16, choices=State, default=State.QUEUED)
    fence = models.PositiveIntegerField(default=1)
    owner = models.CharField(max_length=64, default="", blank=True)
    size = models.PositiveIntegerField(default=0)
    open_at_claim = models.PositiveIntegerField(default=0)
    deaths = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    due_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True, blank=True)
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["state", "host"], name="rowchunk_state_host")]

    def __str__(self) -> str:
        return self.id


class RowCall(models.Model):
    """One call of one row, with its request and its one outcome. ``output`` is a msgpack ``Output``."""

    class State(models.TextChoices):
        PENDING = "pending"
        DONE = "done"
        FAILED = "failed"

    job = models.CharField(max_length=32)
    key = models.CharField(max_length=200)
    ordinal = models.BigIntegerField()
    fingerprint = models.CharField(max_length=32)
    request = models.BinaryField()
    state = models.CharField(max_length=8, choices=State, default=State.PENDING)
    chunk = models.ForeignKey(RowChunk, null=True, blank=True, on_delete=models.SET_NULL, related_name="calls")
    attempts = models.PositiveIntegerField(default=0)
    output = models.BinaryField(null=True)
    error = models.JSONField(null=True, blank=True)
    prompt_tokens = models.PositiveIntegerField(default=0)
    completion_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "key"], name="rowcall_job_key")]
        indexes = [models.Index(fields=["job", "state"], name="rowcall_job_state")]

    def __str__(self) -> str:
        return f"{self.job} {self.key}"
