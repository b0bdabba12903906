"""Datasets in the admin: what there is, the first rows of each, its files. Looked at, never edited.

Everything shown is text: rows are model output and other people's files, so Django escapes them here.
"""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from unfold.admin import ModelAdmin
from unfold.decorators import display

from mlxplatform.datasets.models import Dataset, DatasetRow, DatasetVersion
from mlxplatform.datasets.rowsource import INDEX
from mlxplatform.datasets.submit import parse_tags
from mlxplatform.inference.contract import Refusal

#: Rows of a preview, and characters shown of each.
PREVIEW_ROWS, PREVIEW_CHARS = 10, 2_000

STATE_COLOURS = {"building": "primary", "ready": "success", "failed": "danger", "cancelled": "default"}


def latest(dataset: Dataset) -> DatasetVersion | None:
    return dataset.versions.order_by("-number").first()


class DatasetForm(forms.ModelForm):
    """What may be changed here is checked as the API checks it: pages rely on it."""

    def clean_tags(self) -> list[str]:
        try:
            return parse_tags(self.cleaned_data["tags"])
        except Refusal as refusal:
            raise forms.ValidationError(refusal.message) from None


@admin.register(Dataset)
class DatasetAdmin(ModelAdmin):
    list_display = ("name", "id", "template", "shown_state", "shown_rows", "created_by", "created_at", "archived_at")
    list_filter = ("template", "project")
    search_fields = ("name", "id__exact")
    ordering = ("-created_at", "-id")
    show_full_result_count = False
    actions = ("archive",)
    form = DatasetForm
    fieldsets = (
        (None, {"fields": ("name", "description", "tags")}),
        ("Latest version", {"fields": ("shown_state", "shown_counts", "shown_notes", "downloads", "shown_job")}),
        ("First rows", {"fields": ("preview",)}),
        ("Origin", {"fields": ("id", "template", "project", "created_by", "created_at", "archived_at")}),
    )

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Its files would stay. Datasets are put away, or erased with everything of their project."""
        return False

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        editable = {"name", "description", "tags"}
        own = [field.name for field in Dataset._meta.fields if field.name not in editable]
        return [*own, "shown_state", "shown_counts", "shown_notes", "downloads", "shown_job", "preview"]

    @admin.action(description="Archive selected datasets", permissions=["change"])
    def archive(self, request: HttpRequest, datasets: QuerySet[Dataset]) -> None:
        datasets.filter(archived_at=None).update(archived_at=timezone.now())

    @display(description="State", label=STATE_COLOURS)
    def shown_state(self, dataset: Dataset) -> str:
        version = latest(dataset)
        return version.state if version else "none"

    @display(description="Rows")
    def shown_rows(self, dataset: Dataset) -> str:
        version = latest(dataset)
        return str(version.counts.get("accepted", "–")) if version else "–"

    @display(description="Counts")
    def shown_counts(self, dataset: Dataset) -> str:
        version = latest(dataset)
        return _as_text(version.counts) if version else "–"

    @display(description="Notes")
    def shown_notes(self, dataset: Dataset) -> str:
        version = latest(dataset)
        if version is None:
            return "–"
        return format_html_join("", "<p>{}</p>", ((note,) for note in [*version.notes, version.error] if note)) or "–"

    @display(description="Files")
    def downloads(self, dataset: Dataset) -> str:
        version = latest(dataset)
        if version is None or not version.files:
            return "none yet"
        links = (
            (f"{reverse('dataset-file', args=[dataset.id, name])}?version={version.number}", name, info["rows"], info["bytes"])
            for name, info in version.files.items()
            if name != INDEX
        )
        return format_html_join("", '<p><a href="{}" download>{}</a> ({} rows, {} bytes)</p>', links)

    @display(description="Job")
    def shown_job(self, dataset: Dataset) -> str:
        version = latest(dataset)
        if version is None or not version.job:
            return "–"
        return format_html('<a href="{}">{}</a>', reverse("admin:jobs_job_change", args=[quote(version.job)]), version.job)

    @display(description="First rows")
    def preview(self, dataset: Dataset) -> str:
        version = latest(dataset)
        rows = version.rows.filter(state=DatasetRow.State.ACCEPTED).order_by("ordinal")[:PREVIEW_ROWS] if version else []
        return format_html_join("", "{}", ((_as_text(row.content),) for row in rows)) or "no rows yet"


def _as_text(value: Any) -> str:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if len(text) > PREVIEW_CHARS:
        text = text[:PREVIEW_CHARS] + "\n…"
    return format_html('<pre style="white-space: pre-wrap">{}</pre>', text)
