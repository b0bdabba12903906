"""Rows of inference: the hosts, the answers a client may come back for, and one line for every finished request.

A host's row is written by its gpu process about once in some seconds; the live figures of every second are in Redis
and vanish with the host. The row stays, so that an absent host is a visible fact. The other two are written by the
web processes.
"""

from __future__ import annotations

from django.db import models as orm


class Host(orm.Model):
    """One machine with one GPU. ``models`` is the list of its local models, as in its live state."""

    name = orm.CharField(max_length=64, primary_key=True)
    models = orm.JSONField(default=list)
    instance = orm.CharField(max_length=64, blank=True, default="")
    free_bytes = orm.BigIntegerField(null=True, blank=True)
    started_at = orm.DateTimeField(auto_now_add=True)
    heartbeat_at = orm.DateTimeField(null=True, blank=True, db_index=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class StoredAnswer(orm.Model):
    """A stored response, chat completion or conversation: what was asked, what came, and its numbered events.

    JSON is kept as text, because a JSON column of PostgreSQL refuses the escape of NUL, which models do emit.
    ``items`` is the whole conversation up to and including this answer's input, so that chaining reads one row.
    ``events`` is the zlib-compressed msgpack list of neutral events of a streamed answer, for late resumes.
    """

    class Kind(orm.TextChoices):
        RESPONSE = "response"
        CHAT = "chat.completion"
        CONVERSATION = "conversation"

    class Status(orm.TextChoices):
        QUEUED = "queued"
        IN_PROGRESS = "in_progress"
        COMPLETED = "completed"
        INCOMPLETE = "incomplete"
        FAILED = "failed"
        CANCELLED = "cancelled"

    id = orm.CharField(max_length=80, primary_key=True)
    kind = orm.CharField(max_length=20, choices=Kind.choices)
    status = orm.CharField(max_length=12, choices=Status.choices, default=Status.COMPLETED)
    project = orm.CharField(max_length=64, default="default")
    created_by = orm.CharField(max_length=64, blank=True, default="")
    model = orm.CharField(max_length=200, blank=True, default="")
    background = orm.BooleanField(default=False)
    host = orm.CharField(max_length=64, blank=True, default="")
    request = orm.TextField(default="{}")
    items = orm.TextField(default="[]")
    answer = orm.TextField(default="{}")
    metadata = orm.TextField(default="{}")
    events = orm.BinaryField(null=True, blank=True)
    bytes = orm.BigIntegerField(default=0)
    created_at = orm.DateTimeField(db_index=True)
    used_at = orm.DateTimeField()
    expires_at = orm.DateTimeField(db_index=True)

    class Meta:
        ordering = ["-created_at", "id"]
        indexes = [
            orm.Index(fields=["project", "kind", "-created_at"], name="storedanswer_listing"),
            # Enough to sum up and to find the least recently used without reading the texts.
            orm.Index(fields=["used_at", "bytes"], name="storedanswer_use"),
        ]

    def __str__(self) -> str:
        return self.id


class FinishedRequest(orm.Model):
    """One request that ended, in the words of no protocol: who asked which model what, what came, what it cost.

    ``content`` is zlib-compressed JSON of the conversation and its answers; null when the answer failed or was cut off
    by its client, when the client asked for nothing to be kept, and for requests that hold no conversation. ``text`` is
    the last question and the answers, for search.
    """

    class Outcome(orm.TextChoices):
        COMPLETED = "completed"
        INCOMPLETE = "incomplete"
        FAILED = "failed"
        CANCELLED = "cancelled"

    id = orm.CharField(max_length=80, primary_key=True)
    path = orm.CharField(max_length=64)
    project = orm.CharField(max_length=64, default="default")
    key_id = orm.CharField(max_length=32, blank=True, default="")
    model = orm.CharField(max_length=200)
    outcome = orm.CharField(max_length=12, choices=Outcome.choices)
    error_code = orm.CharField(max_length=64, blank=True, default="")
    stream = orm.BooleanField(default=False)
    prompt_tokens = orm.PositiveBigIntegerField(default=0)
    cached_tokens = orm.PositiveBigIntegerField(default=0)
    completion_tokens = orm.PositiveBigIntegerField(default=0)
    reasoning_tokens = orm.PositiveBigIntegerField(default=0)
    first_token_ms = orm.PositiveIntegerField(null=True, blank=True)
    duration_ms = orm.PositiveIntegerField(default=0)
    bytes = orm.BigIntegerField(default=0)
    ended_at = orm.DateTimeField()
    text = orm.TextField(blank=True, default="")
    content = orm.BinaryField(null=True, blank=True)

    class Meta:
        ordering = ["-ended_at", "id"]
        indexes = [
            orm.Index(fields=["project", "ended_at", "id"], name="finished_by_project"),
            # Enough to sum up and to find the oldest without reading the texts.
            orm.Index(fields=["ended_at", "bytes"], name="finished_by_age"),
        ]

    def __str__(self) -> str:
        return self.id
