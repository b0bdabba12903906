"""Hosts and the response history in the admin: to look and search, not to edit. Contents are shown as text."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, StreamingHttpResponse
from django.utils.html import format_html_join
from unfold.admin import ModelAdmin

from mlxplatform.inference import request_log
from mlxplatform.inference.contract import Message
from mlxplatform.inference.models import FinishedRequest, Host, StoredAnswer


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


@admin.register(FinishedRequest)
class FinishedRequestAdmin(_ReadOnly):
    list_display = ("id", "ended_at", "path", "model", "outcome", "prompt_tokens", "completion_tokens", "duration_ms", "project")
    list_filter = ("outcome", "path", "model", "project", "stream")
    search_fields = ("id", "key_id", "error_code", "text")
    date_hierarchy = "ended_at"
    fields = (
        ("path", "model"),
        ("outcome", "error_code", "stream"),
        ("project", "key_id"),
        ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"),
        ("first_token_ms", "duration_ms", "ended_at"),
        "conversation",
    )
    readonly_fields = ("conversation",)
    actions = ("export_jsonl",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[FinishedRequest]:
        return super().get_queryset(request).defer("content", "text")

    @admin.display(description="What was said")
    def conversation(self, row: FinishedRequest) -> str:
        content = request_log.content_of(row)
        if content is None:
            return "Nothing was kept."
        turns = [*content.messages] if content.prompt is None else [Message("user", content.prompt)]
        turns += [
            Message("assistant", said.text, reasoning=said.reasoning, tool_calls=said.tool_calls) for said in content.answers
        ]
        return format_html_join("", "<p><strong>{}</strong></p><pre style='white-space:pre-wrap'>{}</pre>", map(_shown, turns))

    @admin.action(description="Export as JSON Lines", permissions=["view"])
    def export_jsonl(self, request: HttpRequest, queryset: QuerySet[FinishedRequest]) -> StreamingHttpResponse:
        rows = queryset.defer(None).defer("text").order_by("ended_at", "id")
        lines = (json.dumps(request_log.whole(row)) + "\n" for row in rows.iterator(chunk_size=200))
        response = StreamingHttpResponse(lines, content_type="application/jsonl")
        response["Content-Disposition"] = 'attachment; filename="requests.jsonl"'
        return response


def _shown(turn: Message) -> tuple[str, str]:
    parts = [f"(thinking) {turn.reasoning}"] if turn.reasoning else []
    parts += [turn.content] if turn.content else []
    parts += [f"{call.name}({call.arguments})" for call in turn.tool_calls or ()]
    return turn.role, "\n".join(parts)
