"""Files in the admin: what is stored, for whom, until when; with download and delete."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from unfold.admin import ModelAdmin
from unfold.decorators import display

from mlxplatform.accounts import audit
from mlxplatform.files import service
from mlxplatform.files.models import StoredFile


@admin.register(StoredFile)
class StoredFileAdmin(ModelAdmin):
    list_display = ("id", "filename", "purpose", "status", "bytes", "project", "created_at", "expires_at", "download")
    list_filter = ("purpose", "status", "project")
    search_fields = ("id__exact", "filename")
    show_full_result_count = False
    actions = ("delete_files",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[StoredFile]:
        return service.visible(None)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [field.name for field in StoredFile._meta.fields]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @display(description="Download")
    def download(self, file: StoredFile) -> str:
        return format_html('<a href="{}">download</a>', reverse("file-content", args=[file.id]))

    @admin.action(description="Delete selected files", permissions=["change"])
    def delete_files(self, request: HttpRequest, files: QuerySet[StoredFile]) -> None:
        for file in files:
            service.delete(file)
            audit.record(f"user:{request.user.get_username()}", "file.delete", file.id, project=file.project)
