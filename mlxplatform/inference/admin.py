"""Hosts and the response history in the admin: to look and search, not to edit. Contents are shown as text."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, StreamingHttpResponse
from unfold.admin import ModelAdmin

from mlxplatform.inference.models import Host, StoredAnswer


class _ReadOnly(ModelAdmin):
    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Host)
class HostAdmin(_ReadOnly):
    list_display = ("name", "instance", "free_bytes", "started_at", "heartbeat_at")


@admin.register(StoredAnswer)
class StoredAnswerAdmin(_ReadOnly):
    list_display = ("id", "kind", "status", "model", "project", "bytes", "created_at")
    list_filter = ("kind", "status", "model", "project")
    search_fields = ("id", "items", "answer")
    exclude = ("events",)
    date_hierarchy = "created_at"
    actions = ("export_jsonl",)

    @admin.action(description="Export as JSON Lines", permissions=["view"])
    def export_jsonl(self, request: HttpRequest, queryset: QuerySet[StoredAnswer]) -> StreamingHttpResponse:
        lines = (export_line(row) for row in queryset.defer("events").iterator())
        response = StreamingHttpResponse(lines, content_type="application/jsonl")
        response["Content-Disposition"] = 'attachment; filename="history.jsonl"'
        return response


def export_line(row: StoredAnswer) -> str:
    """One row as one line; ASCII only, so that no line separator inside a text ends it early."""
    value = {
        "id": row.id,
        "kind": row.kind,
        "status": row.status,
        "project": row.project,
        "model": row.model,
        "created_at": row.created_at.isoformat(),
        "items": json.loads(row.items),
        "answer": json.loads(row.answer),
        "metadata": json.loads(row.metadata),
    }
    return json.dumps(value) + "\n"
