"""What an administrator decided about how long things are kept; one row. Null leaves it to the environment."""

from __future__ import annotations

from typing import Any

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

#: A century; more is a mistake.
MOST_DAYS = 36_500
#: 100 TiB.
MOST_MB = 100 * 1024 * 1024


def _bounded(most: int, meaning: str) -> models.PositiveIntegerField[int | None, int | None]:
    bounds = [MinValueValidator(1), MaxValueValidator(most)]
    return models.PositiveIntegerField(null=True, blank=True, validators=bounds, help_text=meaning)


class Retention(models.Model):
    history_days = _bounded(MOST_DAYS, "Age at which answers and finished requests are removed, days.")
    history_mb = _bounded(MOST_MB, "Size at which the oldest of them are removed, MiB.")
    job_log_days = _bounded(MOST_DAYS, "Age at which the log of an ended job is removed, days; its row and end stay.")

    class Meta:
        verbose_name = verbose_name_plural = "retention"

    def __str__(self) -> str:
        return "How long things are kept"

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.pk = 1
        super().save(*args, **kwargs)
