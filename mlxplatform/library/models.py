"""What the library keeps in SQL: names that are taken by work still under way.

Models themselves are directories; a row here only says that a job is going to publish one of that name, so that
two jobs never work for the same name and a clash is said before any work.
"""

from __future__ import annotations

from django.db import models
from django.utils import timezone


class ReservedName(models.Model):
    """The name a live job will publish."""

    name = models.CharField(primary_key=True, max_length=128)
    job = models.CharField(max_length=32, db_index=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    def __str__(self) -> str:
        return self.name
