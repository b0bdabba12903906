"""Retention in the admin: one row, which is changed and never deleted."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from mlxplatform.accounts import audit
from mlxplatform.retention import policy
from mlxplatform.retention.models import Retention


@admin.register(Retention)
class RetentionAdmin(ModelAdmin):
    list_display = ["__str__", *policy.NAMES]
    fields = list(policy.NAMES)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return super().has_add_permission(request) and not Retention.objects.exists()

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Retention, form: Any, change: bool) -> None:
        old = Retention.objects.first()
        super().save_model(request, obj, form, change)
        policy.forget()
        before, after = ({name: getattr(row, name) for name in policy.NAMES} if row else None for row in (old, obj))
        audit.record(f"user:{request.user.get_username()}", "retention.change", "platform", before=before, after=after)
