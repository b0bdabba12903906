"""Jobs in the admin: the list with state and progress, the page of one with its live log, and what may be done.

Rows are looked at, never edited: state changes only by :mod:`mlxplatform.jobs.service`, as everywhere. Everything a
job says is text: Django escapes it here, and the live log writes it with ``textContent``.
"""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from unfold.admin import ModelAdmin
from unfold.decorators import display

from mlxplatform.accounts import audit
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs.acting import act, let_go_on
from mlxplatform.jobs.models import Job, QueuePause, Worker

STATE_COLOURS = {
    "queued": "info",
    "waiting": "info",
    "running": "primary",
    "paused": "warning",
    "cancelling": "warning",
    "zombie": "warning",
    "done": "success",
    "failed": "danger",
    "cancelled": "default",
}


def _do(name: str, label: str) -> Any:
    """An admin action that does ``name`` to every selected job."""

    @admin.action(description=label, permissions=["change"])
    def run(modeladmin: JobAdmin, request: HttpRequest, jobs: QuerySet[Job]) -> None:
        done = 0
        for job in jobs:
            try:
                act(job, name, f"user:{request.user.get_username()}")
                done += 1
            except Refusal as refusal:
                modeladmin.message_user(request, f"{job.id}: {refusal.message}", messages.WARNING)
        if done:
            modeladmin.message_user(request, f"{name}: {done} job{'s' if done > 1 else ''}", messages.SUCCESS)

    run.__name__ = f"{name}_jobs"
    return run


class ReadOnly(ModelAdmin):
    """Shows rows and offers actions; adds, edits and deletes nothing."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [field.name for field in self.model._meta.fields]


@admin.register(Job)
class JobAdmin(ReadOnly):
    list_display = ("id", "kind", "shown_state", "shown_progress", "short_message", "attempts", "created_at", "ended_at")
    list_filter = ("state", "kind", "queue")
    search_fields = ("id__exact", "error_code__exact", "idempotency_key__exact")
    search_help_text = "Whole id, error code or idempotency key"
    ordering = ("-created_at", "-id")
    show_full_result_count = False
    list_per_page = 50
    actions = (
        _do("cancel", "Cancel selected jobs"),
        _do("retry", "Retry selected jobs"),
        _do("pause", "Pause selected jobs"),
        _do("resume", "Resume selected jobs"),
    )
    change_form_before_template = "jobs/live_log.html"
    fieldsets = (
        (None, {"fields": ("kind", "shown_state", "shown_progress", "message", "error_code", "error")}),
        ("Input and result", {"fields": ("shown_config", "shown_result")}),
        ("Running", {"fields": ("queue", "owner", "fence", "attempts", "max_attempts", "deaths", "priority", "heartbeat_at")}),
        ("Times", {"fields": ("created_at", "due_at", "started_at", "ended_at", "deadline_at", "enqueued_at")}),
        ("Origin", {"fields": ("project", "created_by", "idempotency_key", "parent")}),
    )

    class Media:
        js = ("jobs/live_log.js",)
        css = {"all": ("jobs/live_log.css",)}

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        shown = ["shown_state", "shown_progress", "shown_config", "shown_result"]
        return super().get_readonly_fields(request, obj) + shown

    @display(description="State", ordering="state", label=STATE_COLOURS)
    def shown_state(self, job: Job) -> str:
        return job.state

    @display(description="Progress", ordering="progress")
    def shown_progress(self, job: Job) -> str:
        percent = f"{job.progress:.0%}"
        return format_html('<progress max="1" value="{}" title="{}">{}</progress> {}', job.progress, percent, percent, percent)

    @display(description="Message")
    def short_message(self, job: Job) -> str:
        text = job.error or job.message
        return text if len(text) <= 80 else text[:79] + "…"

    @display(description="Config")
    def shown_config(self, job: Job) -> str:
        return _as_text(job.config)

    @display(description="Result")
    def shown_result(self, job: Job) -> str:
        return _as_text(job.result)


def _as_text(value: Any) -> str:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if len(text) > 20_000:
        text = text[:20_000] + "\n… (cut; the whole is at /api/jobs)"
    return format_html('<pre class="job-json">{}</pre>', text)


@admin.register(Worker)
class WorkerAdmin(ReadOnly):
    list_display = ("id", "queue", "machine", "pid", "threads", "beats", "started_at", "heartbeat_at")
    ordering = ("queue", "started_at")


@admin.register(QueuePause)
class QueuePauseAdmin(ModelAdmin):
    """A row here keeps the queue's workers from starting anything; delete it to go on."""

    list_display = ("queue", "paused_by", "paused_at")
    fields = ("queue",)

    def save_model(self, request: HttpRequest, obj: QueuePause, form: Any, change: bool) -> None:
        obj.paused_by = f"user:{request.user.get_username()}"
        super().save_model(request, obj, form, change)
        audit.record(obj.paused_by, "queue.pause", obj.queue)

    def delete_model(self, request: HttpRequest, obj: QueuePause) -> None:
        let_go_on(obj.queue, f"user:{request.user.get_username()}")

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        for pause in queryset:
            self.delete_model(request, pause)
