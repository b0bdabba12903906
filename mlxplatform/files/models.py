"""Files as rows. The bytes lie under a server-made name in the artefact storage; the client's name is only shown."""

from __future__ import annotations

import secrets

from django.db import models
from django.utils import timezone


def new_file_id() -> str:
    return "file-" + secrets.token_hex(12)


def new_upload_id() -> str:
    return "upload_" + secrets.token_hex(12)


def new_part_id() -> str:
    return "part_" + secrets.token_hex(12)


class StoredFile(models.Model):
    """An uploaded or produced file. Deleted and expired ones are gone for clients at once, their bytes a little later.

    ``producer`` names who makes the content while the file is not yet complete (``status`` uploaded); such a file has
    no bytes on disk.
    """

    id = models.CharField(primary_key=True, max_length=40, default=new_file_id, editable=False)
    filename = models.CharField(max_length=255)
    purpose = models.CharField(max_length=32)
    status = models.CharField(max_length=12, default="processed")
    bytes = models.PositiveBigIntegerField(default=0)
    sha256 = models.CharField(max_length=64, default="", blank=True)
    producer = models.CharField(max_length=80, default="", blank=True)
    project = models.CharField(max_length=64, default="default")
    created_by = models.CharField(max_length=150, default="", blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    deleted_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [
            models.Index(fields=["project", "-created_at", "-id"], name="file_project_newest"),
            models.Index(fields=["expires_at"], name="file_expiry"),
        ]

    def __str__(self) -> str:
        return f"{self.filename} ({self.id})"


class Upload(models.Model):
    """A file that arrives in parts."""

    id = models.CharField(primary_key=True, max_length=40, default=new_upload_id, editable=False)
    filename = models.CharField(max_length=255)
    purpose = models.CharField(max_length=32)
    bytes = models.PositiveBigIntegerField()
    status = models.CharField(max_length=12, default="pending")
    file = models.ForeignKey(StoredFile, null=True, blank=True, on_delete=models.SET_NULL)
    file_seconds = models.PositiveIntegerField(null=True, blank=True)
    project = models.CharField(max_length=64, default="default")
    created_by = models.CharField(max_length=150, default="", blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.id


class UploadPart(models.Model):
    """One part; its bytes lie under its id until the upload is completed or over."""

    id = models.CharField(primary_key=True, max_length=40, default=new_part_id, editable=False)
    upload = models.ForeignKey(Upload, on_delete=models.CASCADE, related_name="parts")
    bytes = models.PositiveBigIntegerField()
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    def __str__(self) -> str:
        return self.id
