"""Datasets, their immutable versions, and the rows of generated versions.

A version is built by one job (retried or not) and never changes once ``ready``. Rows a job makes live here, with
their verdict and provenance; rows of imported versions stay in files with an index.
"""

from __future__ import annotations

import secrets

from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.utils import timezone


def new_dataset_id() -> str:
    return f"ds_{secrets.token_hex(8)}"


class Dataset(models.Model):
    """A named line of versions."""

    id = models.CharField(primary_key=True, max_length=24, default=new_dataset_id, editable=False)
    name = models.CharField(max_length=200)
    #: Template id, or how it was imported.
    template = models.CharField(max_length=40)
    description = models.TextField(default="", blank=True)
    tags = models.JSONField(default=list, blank=True)
    project = models.CharField(max_length=64, default="default")
    created_by = models.CharField(max_length=150, default="", blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    archived_at = models.DateTimeField(null=True, blank=True)
    #: A trial of a template, never listed and removed after a day.
    preview = models.BooleanField(default=False, editable=False)

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [models.Index(fields=["project", "-created_at", "-id"], name="dataset_project_newest")]

    def __str__(self) -> str:
        return f"{self.name} ({self.id})"


class DatasetVersion(models.Model):
    """One immutable state of a dataset, or the attempt at one."""

    class State(models.TextChoices):
        BUILDING = "building"
        READY = "ready"
        FAILED = "failed"
        CANCELLED = "cancelled"

    dataset = models.ForeignKey(Dataset, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    state = models.CharField(max_length=12, choices=State, default=State.BUILDING)
    job = models.CharField(max_length=32, default="", blank=True, db_index=True)
    #: The version whose finished work or rows this one started from.
    parent = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="children")
    output_format = models.CharField(max_length=24)
    inputs = models.JSONField(default=dict, encoder=DjangoJSONEncoder)
    options = models.JSONField(default=dict, encoder=DjangoJSONEncoder)
    #: made, accepted, train, valid, and dropped by reason.
    counts = models.JSONField(default=dict)
    #: name → bytes, sha256, rows.
    files = models.JSONField(default=dict)
    #: Folder of the files within the artefact storage; empty until ready.
    location = models.CharField(max_length=200, default="", blank=True)
    #: Sentences a reader should know, e.g. that the rows are prompts only.
    notes = models.JSONField(default=list)
    report = models.JSONField(default=dict, encoder=DjangoJSONEncoder)
    trainable = models.BooleanField(default=True)
    error = models.TextField(default="", blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    ready_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["dataset", "-number"]
        constraints = [models.UniqueConstraint(fields=["dataset", "number"], name="dataset_version_number")]

    def __str__(self) -> str:
        return f"{self.dataset_id} v{self.number}"


class DatasetRow(models.Model):
    """One made row, or the reason why there is none. ``content`` never changes; the verdict is settled per round."""

    class State(models.TextChoices):
        ACCEPTED = "accepted"
        DROPPED = "dropped"

    version = models.ForeignKey(DatasetVersion, on_delete=models.CASCADE, related_name="rows")
    #: Place in the version: round, source, and number within the source.
    ordinal = models.BigIntegerField()
    #: The source it came from; all rows of a source are written together.
    source = models.CharField(max_length=120)
    state = models.CharField(max_length=8, choices=State)
    reason = models.CharField(max_length=40, default="", blank=True)
    detail = models.TextField(default="", blank=True)
    content = models.JSONField(null=True, blank=True)
    #: Judge scores, PII flags and the like.
    verdicts = models.JSONField(default=dict, blank=True)
    chars = models.PositiveIntegerField(default=0)
    #: "train" or "valid" once the version is ready.
    split = models.CharField(max_length=8, default="", blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ["version", "ordinal"]
        constraints = [models.UniqueConstraint(fields=["version", "ordinal"], name="dataset_row_ordinal")]
        indexes = [
            models.Index(fields=["version", "state", "ordinal"], name="dataset_row_state"),
            models.Index(fields=["version", "source"], name="dataset_row_source"),
        ]

    def __str__(self) -> str:
        return f"{self.version_id}:{self.ordinal}"


class HubToken(models.Model):
    """A project's token for the Hugging Face hub, sealed. It is never shown again, only its last characters."""

    project = models.CharField(primary_key=True, max_length=64)
    sealed = models.TextField(editable=False)
    ends_with = models.CharField(max_length=4)
    set_by = models.CharField(max_length=150, default="", blank=True)
    set_at = models.DateTimeField(default=timezone.now, editable=False)

    def __str__(self) -> str:
        return f"hub token of {self.project}"
