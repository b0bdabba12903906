"""Schedules in the admin: edited like the API edits them, with what became of past times, and run now."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from unfold.admin import ModelAdmin, TabularInline
from unfold.decorators import display

from mlxplatform.inference.contract import Refusal
from mlxplatform.schedules import cron, service, starters
from mlxplatform.schedules.models import Firing, Schedule
from mlxplatform.schedules.wire import SHOWN_AHEAD


class ScheduleForm(forms.ModelForm):
    class Meta:
        model = Schedule
        fields = ("name", "project", "kind", "config", "cron", "timezone", "misfire", "grace_seconds", "paused")

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if "kind" in self.fields:
            self.fields["kind"].widget = forms.Select(choices=[(name, name) for name in starters.names()])


class FiringInline(TabularInline):
    model = Firing
    fields = readonly_fields = ("due_at", "at", "outcome", "job", "note", "by")
    extra = 0
    max_num = 0
    can_delete = False
    verbose_name_plural = "Past times"

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Firing]:
        return super().get_queryset(request).order_by("-at")


@admin.register(Schedule)
class ScheduleAdmin(ModelAdmin):
    form = ScheduleForm
    list_display = ("name", "kind", "cron", "timezone", "paused", "next_at", "last_at", "last_job", "project")
    list_filter = ("kind", "paused", "project")
    search_fields = ("name",)
    readonly_fields = ("next_times", "last_at", "last_job", "created_by", "created_at")
    inlines = (FiringInline,)
    actions = ("run_now", "pause", "resume")

    @display(description="Next times")
    def next_times(self, schedule: Schedule) -> str:
        if schedule.paused or not schedule.cron:
            return "paused" if schedule.paused else ""
        try:
            times = cron.upcoming(schedule.cron, schedule.timezone, timezone.now(), SHOWN_AHEAD)
        except cron.BadSchedule as error:
            return error.message
        zone = cron.zone(schedule.timezone)
        return ", ".join(f"{time.astimezone(zone):%a %Y-%m-%d %H:%M %Z}" for time in times)

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        if not change:
            obj.created_by = f"user:{request.user.get_username()}"
        obj.plan()
        obj.save()

    @admin.action(description="Run now", permissions=["change"])
    def run_now(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        for schedule in queryset:
            try:
                firing = service.run_now(schedule, f"user:{request.user.get_username()}")
                self.message_user(request, f"{schedule.name}: started {firing.job}", messages.SUCCESS)
            except Refusal as refusal:
                self.message_user(request, f"{schedule.name}: {refusal.message}", messages.WARNING)

    @admin.action(description="Pause", permissions=["change"])
    def pause(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        for schedule in queryset:
            service.set_paused(schedule, True)

    @admin.action(description="Resume", permissions=["change"])
    def resume(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        for schedule in queryset:
            service.set_paused(schedule, False)
