"""Batches in the admin: state, counts, forecast; the job's page has the live log and the actions."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from unfold.admin import ModelAdmin
from unfold.decorators import display

from mlxplatform.batches.models import Batch


@admin.register(Batch)
class BatchAdmin(ModelAdmin):
    list_display = ("id", "dialect", "endpoint", "status", "counts", "project", "created_at", "job_link")
    list_filter = ("status", "dialect", "endpoint", "project")
    search_fields = ("id__exact", "input_file_name__exact")
    show_full_result_count = False

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [field.name for field in Batch._meta.fields]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @display(description="Finished / total (failed)")
    def counts(self, batch: Batch) -> str:
        failed = batch.errored + batch.cancelled + batch.expired
        return f"{batch.finished_lines} / {batch.total} ({failed})"

    @display(description="Job")
    def job_link(self, batch: Batch) -> str:
        if not batch.job_id:
            return "–"
        return format_html('<a href="{}">{}</a>', reverse("admin:jobs_job_change", args=[quote(batch.job_id)]), batch.job_id)
