"""What training keeps in SQL: quality reports of quantized models. Files stay in the model directories."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.utils import timezone


class QualityReport(models.Model):
    """The measured difference between a quantized model and its baseline."""

    job = models.CharField(primary_key=True, max_length=32)
    project = models.CharField(max_length=64, default="default")
    model = models.CharField(max_length=128, db_index=True)
    baseline = models.CharField(max_length=128, db_index=True)
    baseline_revision = models.CharField(max_length=32)
    bytes = models.BigIntegerField()
    bits_per_weight = models.FloatField()
    kl_mean = models.FloatField(null=True)
    #: Everything the child said.
    figures: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.model} against {self.baseline}"


class TrainingRun(models.Model):
    """What a fine-tune job needs besides its row: wishes of people, and how the API it came through names it."""

    job = models.CharField(primary_key=True, max_length=32)
    project = models.CharField(max_length=64, default="default", db_index=True)
    #: A person asked to stop and publish what there is.
    finish = models.BooleanField(default=False)
    #: Fields of OpenAI's job object that are only shown: metadata, hyperparameters as sent, integrations.
    surface: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict)
    #: Id of the result file, once written.
    result_file = models.CharField(max_length=40, default="", blank=True)

    def __str__(self) -> str:
        return self.job


class Adapter(models.Model):
    """A published adapter: where it comes from and how it did. Its files lie in the adapters' directory under its id."""

    id = models.CharField(primary_key=True, max_length=40)
    project = models.CharField(max_length=64, default="default", db_index=True)
    #: The name requests use: ft:<base>:local:<suffix>:<id>.
    name = models.CharField(max_length=255, unique=True)
    base_model = models.CharField(max_length=128, db_index=True)
    base_revision = models.CharField(max_length=32)
    method = models.CharField(max_length=16)
    fine_tune_type = models.CharField(max_length=16)
    #: Directory name of a fully trained model in the library; empty for adapters.
    model = models.CharField(max_length=128, default="", blank=True)
    job = models.CharField(max_length=32, default="", blank=True, db_index=True)
    #: Ids of the adapters it was merged from.
    parents = models.JSONField(default=list, blank=True)
    config: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict)
    metrics: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict)
    lineage: models.JSONField[dict[str, Any], dict[str, Any]] = models.JSONField(default=dict)
    bytes = models.BigIntegerField(default=0)
    created_by = models.CharField(max_length=150, default="", blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ["-created_at", "-id"]

    def __str__(self) -> str:
        return self.name


class BlindVote(models.Model):
    """Which of two models a person preferred without knowing which was which."""

    project = models.CharField(max_length=64, default="default", db_index=True)
    #: The two names in alphabetical order, so that a pair is one pair.
    first = models.CharField(max_length=255, db_index=True)
    second = models.CharField(max_length=255, db_index=True)
    #: The preferred name; empty for neither.
    winner = models.CharField(max_length=255, default="", blank=True)
    question = models.TextField(default="", blank=True)
    created_by = models.CharField(max_length=150, default="", blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ["-created_at", "-id"]

    def __str__(self) -> str:
        return f"{self.first} against {self.second}"
