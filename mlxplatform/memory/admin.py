"""The memory in the admin: vaults with their policy, the review queue, runs with their reports, questions."""

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
from mlxplatform.memory import changes, orders
from mlxplatform.memory.models import Change, Conversation, Question, Run, Tombstone, Vault
from mlxplatform.memory.wire import change_card


class ReadOnly(ModelAdmin):
    """Shows rows and offers actions; adds, edits and deletes nothing."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return obj is None and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def _by(request: HttpRequest) -> str:
    return f"user:{request.user.get_username()}"


@admin.register(Vault)
class VaultAdmin(ModelAdmin):
    list_display = ("name", "project", "policy", "hand_edits", "model", "own_history", "evaluation_blocks")
    actions = ("synthesize",)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("name", "project", "created_at") if obj else ("created_at",)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @admin.action(description="Write now", permissions=["change"])
    def synthesize(self, request: HttpRequest, queryset: QuerySet[Vault]) -> None:
        for vault in queryset:
            job = orders.synthesize({"vault": vault.name}, vault.project, _by(request))
            self.message_user(request, f"{vault}: started {job.id}", messages.SUCCESS)


def _review(name: str, label: str) -> Any:
    """An admin action that decides about every selected change."""

    @admin.action(description=label, permissions=["view"])
    def run(modeladmin: ChangeAdmin, request: HttpRequest, queryset: QuerySet[Change]) -> None:
        if not request.user.has_perm("memory.change_change"):
            modeladmin.message_user(request, "You may not decide about changes.", messages.ERROR)
            return
        done = 0
        for change in queryset.order_by("-number" if name == "revert" else "number"):
            try:
                getattr(changes, name)(change, _by(request))
            except Refusal as refusal:
                modeladmin.message_user(request, f"{change}: {refusal.message}", messages.WARNING)
                continue
            audit.record(_by(request), f"memory.{name}", change.id, project=change.vault.project, after={"page": change.stem})
            done += 1
        if done:
            modeladmin.message_user(request, f"{name}: {done}", messages.SUCCESS)

    run.__name__ = f"{name}_changes"
    return run


@admin.register(Change)
class ChangeAdmin(ReadOnly):
    list_display = ("summary_or_kind", "stem", "kind", "state", "confidence", "vault", "created_at", "decided_by")
    list_filter = ("state", "kind", "vault")
    search_fields = ("id__exact", "stem", "summary")
    fields = (
        "id",
        "vault",
        "run",
        "stem",
        "kind",
        "state",
        "confidence",
        "note",
        "difference",
        "sources",
        "commit",
        "decided_by",
        "decided_at",
    )
    actions = (_review("accept", "Accept"), _review("reject", "Reject"), _review("revert", "Revert"))
    list_per_page = 50

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return self.fields

    @display(description="Change")
    def summary_or_kind(self, change: Change) -> str:
        return change.summary or change.kind

    @display(description="Difference")
    def difference(self, change: Change) -> str:
        card = change_card(change)
        return format_html("<pre style='white-space:pre-wrap'>{}</pre>", card["diff"] or card["problem"] or "")

    @display(description="Source turns")
    def sources(self, change: Change) -> str:
        told = [
            f"{source['title'] or source['label']} ({source['date']}, {source['source']})\n"
            + "\n".join(f"  {turn['turn']} {turn['role']}: {turn['text']}" for turn in source["turns"])
            for source in change_card(change)["sources"]
        ]
        return format_html("<pre style='white-space:pre-wrap'>{}</pre>", "\n\n".join(told))


@admin.register(Run)
class RunAdmin(ReadOnly):
    list_display = ("id", "vault", "state", "score", "job", "started_at", "ended_at")
    list_filter = ("state", "vault")
    fields = readonly_fields = ("id", "vault", "state", "score", "job", "started_at", "ended_at", "told")

    @display(description="Report")
    def told(self, run: Run) -> str:
        return format_html("<pre style='white-space:pre-wrap'>{}</pre>", json.dumps(run.report, indent=1, ensure_ascii=False))


@admin.register(Conversation)
class ConversationAdmin(ReadOnly):
    list_display = ("__str__", "source", "hash", "vault", "updated_at")
    list_filter = ("source", "vault")
    search_fields = ("title", "hash__exact", "external_id__exact")


@admin.register(Question)
class QuestionAdmin(ModelAdmin):
    list_display = ("text", "expected", "negative", "vault")
    list_filter = ("vault", "negative")


@admin.register(Tombstone)
class TombstoneAdmin(ReadOnly):
    list_display = ("kind", "key", "vault", "by", "at")
    list_filter = ("kind", "vault")
