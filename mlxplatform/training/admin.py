"""Adapters and quality reports in the admin: to look at; they are made and removed through the API and the console."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from mlxplatform.training.models import Adapter, QualityReport


class _ReadOnly(ModelAdmin):
    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [field.name for field in self.model._meta.fields]


@admin.register(Adapter)
class AdapterAdmin(_ReadOnly):
    list_display = ("name", "base_model", "method", "fine_tune_type", "bytes", "job", "created_at")
    list_filter = ("method", "base_model")
    search_fields = ("name", "id", "job")


@admin.register(QualityReport)
class QualityReportAdmin(_ReadOnly):
    list_display = ("model", "baseline", "bits_per_weight", "kl_mean", "bytes", "created_at")
    list_filter = ("baseline",)
    search_fields = ("model", "job")
