"""What the library keeps in SQL: names that are taken by work still under way, and what people chose.

Models themselves are directories. A reserved name says that a job is going to publish one of that name, so that
two jobs never work for the same name and a clash is said before any work.
"""

from __future__ import annotations

from typing import Any

from django.db import models
from django.utils import timezone


class ReservedName(models.Model):
    """The name a live job will publish."""

    name = models.CharField(primary_key=True, max_length=128)
    job = models.CharField(max_length=32, db_index=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    def __str__(self) -> str:
        return self.name


class ModelChoice(models.Model):
    """What people decided about a model or fine-tuned name; it holds also while the model is away."""

    model = models.CharField(primary_key=True, max_length=255)
    #: Values for what a request leaves open, by the names of :data:`mlxplatform.library.choices.FIELDS`.
    preset: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict, blank=True)
    #: Never leaves memory by itself.
    pinned = models.BooleanField(default=False)
    #: The kind of request this model answers when a client names none; empty for all but one of each kind.
    default_for = models.CharField(max_length=16, default="", blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["default_for"], condition=~models.Q(default_for=""), name="one_default_of_a_kind")
        ]

    def __str__(self) -> str:
        return self.model
