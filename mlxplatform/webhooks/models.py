"""Who wants to be told, and every piece of news on its way to them."""

from __future__ import annotations

import base64
import secrets

from django.db import models
from django.utils import timezone


def new_webhook_id() -> str:
    return "wh_" + secrets.token_hex(12)


def new_event_id() -> str:
    return "evt_" + secrets.token_hex(16)


def new_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


class Webhook(models.Model):
    """An address that is told about events of a project. ``job`` narrows it to one job, told once."""

    id = models.CharField(primary_key=True, max_length=40, default=new_webhook_id, editable=False)
    url = models.URLField(max_length=2000)
    events = models.JSONField(default=list)
    #: Needed in the clear to sign; shown to its owner once.
    secret = models.CharField(max_length=80, default=new_secret)
    job = models.CharField(max_length=20, default="", blank=True)
    active = models.BooleanField(default=True)
    project = models.CharField(max_length=64, default="default")
    created_by = models.CharField(max_length=150, default="", blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ["-created_at", "-id"]

    def __str__(self) -> str:
        return f"{self.id} {self.url}"


class Delivery(models.Model):
    """One event for one webhook, until it was accepted or given up."""

    PENDING, DELIVERED, FAILED = "pending", "delivered", "failed"

    id = models.CharField(primary_key=True, max_length=40, default=new_event_id, editable=False)
    webhook = models.ForeignKey(Webhook, on_delete=models.CASCADE, related_name="deliveries")
    type = models.CharField(max_length=40)
    body = models.TextField()
    state = models.CharField(max_length=10, default=PENDING)
    attempts = models.PositiveIntegerField(default=0)
    due_at = models.DateTimeField(default=timezone.now)
    #: HTTP status of the last answer, or why there was none.
    answer = models.CharField(max_length=120, default="", blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [models.Index(fields=["state", "due_at"], name="delivery_due")]

    def __str__(self) -> str:
        return f"{self.type} {self.id}"
