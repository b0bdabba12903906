"""API keys, the usage ledger and the audit log."""

from __future__ import annotations

import secrets

from django.conf import settings
from django.db import models
from django.utils import timezone

from mlxplatform.accounts.scopes import DEFAULT_SCOPES

DEFAULT_PROJECT = "default"


def _key_id() -> str:
    return "key_" + secrets.token_hex(8)


def _default_scopes() -> list[str]:
    return list(DEFAULT_SCOPES)


class ApiKey(models.Model):
    """One key. Only its SHA-256 is kept: keys are 256 random bits, so no salt or slow hash is needed.

    A quota of 0 means no limit. ``requests_per_minute`` counts inference, ``tokens_per_day`` also what jobs had generated;
    storage counts files of the project.
    """

    id = models.CharField(primary_key=True, max_length=32, default=_key_id, editable=False)
    name = models.CharField(max_length=120)
    prefix = models.CharField(max_length=16, editable=False)
    digest = models.CharField(max_length=64, unique=True, editable=False)
    project = models.CharField(max_length=64, default=DEFAULT_PROJECT, db_index=True)
    scopes = models.JSONField(default=_default_scopes)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="api_keys")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    requests_per_minute = models.PositiveIntegerField(default=0)
    tokens_per_day = models.PositiveBigIntegerField(default=0)
    concurrency = models.PositiveIntegerField(default=0)
    storage_bytes = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ["-created_at"]
        verbose_name = "API key"

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    @property
    def is_active(self) -> bool:
        if self.revoked_at is not None:
            return False
        return self.expires_at is None or self.expires_at > timezone.now()


class Person(models.Model):
    """What the platform knows of a user beside Django's own row: the project whose work they see and add to."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="person")
    project = models.CharField(max_length=64, default=DEFAULT_PROJECT)

    class Meta:
        verbose_name_plural = "people"

    def __str__(self) -> str:
        return f"{self.user} in {self.project}"


class SignInFailure(models.Model):
    """One wrong password. In SQL, so that guessing does not start afresh when a process does."""

    account = models.CharField(max_length=150)
    address = models.CharField(max_length=45)
    at = models.DateTimeField(default=timezone.now, db_index=True)

    class Meta:
        indexes = [
            models.Index(fields=["account", "at"], name="sign_in_account"),
            models.Index(fields=["address", "at"], name="sign_in_address"),
        ]

    def __str__(self) -> str:
        return f"{self.account} from {self.address}"


class UsageDay(models.Model):
    """Tokens and requests of one key and model on one UTC day. ``key_id`` is "" for keyless use."""

    day = models.DateField()
    project = models.CharField(max_length=64, default=DEFAULT_PROJECT)
    key_id = models.CharField(max_length=32, default="", blank=True)
    model = models.CharField(max_length=200)
    requests = models.PositiveBigIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ["-day", "project", "model"]
        constraints = [models.UniqueConstraint(fields=["day", "project", "key_id", "model"], name="usage_day_once")]
        verbose_name = "usage"
        verbose_name_plural = "usage"


class AuditEntry(models.Model):
    """One action of a person or a key. Rows are only ever added."""

    at = models.DateTimeField(default=timezone.now, db_index=True)
    actor = models.CharField(max_length=160)
    project = models.CharField(max_length=64, default=DEFAULT_PROJECT)
    action = models.CharField(max_length=64)
    target = models.CharField(max_length=160)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)

    class Meta:
        ordering = ["-at", "-id"]
        verbose_name = "audit entry"
        verbose_name_plural = "audit log"
