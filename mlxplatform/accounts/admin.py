"""Keys, usage and audit in the admin. A new key's secret is shown once, as a message."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from mlxplatform.accounts import identity, keys
from mlxplatform.accounts.models import ApiKey, AuditEntry, UsageDay


@admin.register(ApiKey)
class ApiKeyAdmin(ModelAdmin):
    list_display = ["name", "prefix", "project", "scopes", "created_at", "expires_at", "last_used_at", "revoked_at"]
    list_filter = ["project"]
    search_fields = ["name", "prefix", "project"]
    readonly_fields = ["prefix", "created_at", "last_used_at", "revoked_at"]
    fields = [
        "name",
        "project",
        "scopes",
        "expires_at",
        "requests_per_minute",
        "tokens_per_day",
        "concurrency",
        "storage_bytes",
        "prefix",
        "created_at",
        "last_used_at",
        "revoked_at",
    ]
    actions = ["revoke_keys", "rotate_keys"]

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:
        if change:
            obj.save()
        else:
            quota = keys.Quota(obj.requests_per_minute, obj.tokens_per_day, obj.concurrency, obj.storage_bytes)
            made, secret = keys.create(
                obj.name,
                project=obj.project,
                scopes=obj.scopes,
                expires_at=obj.expires_at,
                quota=quota,
                owner_id=request.user.pk,
                actor=_actor(request),
            )
            obj.pk, obj.digest, obj.prefix = made.pk, made.digest, made.prefix
            self.message_user(request, f"Copy this key now, it is not shown again: {secret}", messages.WARNING)
        identity.forget()

    def has_delete_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        return False

    @admin.action(description="Revoke")
    def revoke_keys(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        for key in queryset:
            keys.revoke(key, actor=_actor(request))
        identity.forget()

    @admin.action(description="Rotate (shows the new secrets once)")
    def rotate_keys(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        for key in queryset:
            secret = keys.rotate(key, actor=_actor(request))
            self.message_user(request, f"{key.name}: {secret}", messages.WARNING)
        identity.forget()


class _ReadOnlyAdmin(ModelAdmin):
    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(UsageDay)
class UsageDayAdmin(_ReadOnlyAdmin):
    list_display = ["day", "project", "key_id", "model", "requests", "prompt_tokens", "cached_tokens", "completion_tokens"]
    list_filter = ["project", "model"]
    date_hierarchy = "day"


@admin.register(AuditEntry)
class AuditEntryAdmin(_ReadOnlyAdmin):
    list_display = ["at", "actor", "action", "target", "project"]
    list_filter = ["action"]
    search_fields = ["actor", "target"]


def _actor(request: HttpRequest) -> str:
    return f"user:{request.user.get_username()}"
