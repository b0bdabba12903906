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
