"""Webhooks in the admin: who is told, and what became of each delivery."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from mlxplatform.webhooks.models import Delivery, Webhook


@admin.register(Webhook)
class WebhookAdmin(ModelAdmin):
    list_display = ("id", "url", "active", "job", "project", "created_at")
    list_filter = ("active", "project")
    fields = ("url", "events", "job", "active", "project", "created_by", "created_at")
    readonly_fields = ("url", "events", "job", "project", "created_by", "created_at")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


@admin.register(Delivery)
class DeliveryAdmin(ModelAdmin):
    list_display = ("id", "type", "webhook", "state", "attempts", "answer", "created_at", "ended_at")
    list_filter = ("state", "type")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [field.name for field in Delivery._meta.fields]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False
