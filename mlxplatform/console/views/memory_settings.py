"""What goes into a memory and by which rules: importing an export, a vault's settings, its evaluation questions."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from mlxplatform.accounts import audit
from mlxplatform.accounts.models import ApiKey
from mlxplatform.accounts.scopes import WRITE
from mlxplatform.console.page import actor_of, identity_of, page
from mlxplatform.console.views.memory import vaults_seen
from mlxplatform.files import service as files
from mlxplatform.files.names import base_name
from mlxplatform.inference.contract import Refusal
from mlxplatform.memory import orders, vault_settings
from mlxplatform.memory.models import Question, Vault
from mlxplatform.memory.orders import invalid
from mlxplatform.memory.sources.registry import READERS

#: What people call the formats.
FORMATS = {
    "chatgpt": "ChatGPT export",
    "claude": "Claude export",
    "pi": "coding agent sessions",
    "jsonl": "JSON lines",
    "markdown": "Markdown transcripts or notes",
}
#: Bytes handed over at once while an upload is stored.
PIECE = 1 << 20


@page(WRITE)
def settings(request: HttpRequest, vault: int) -> HttpResponse:
    """The page, and what its forms send."""
    found = vaults_seen(request).filter(pk=vault).first()
    if found is None:
        raise Http404("There is no such vault.")
    if request.method != "POST":
        return _page(request, found)
    try:
        return _DO.get(request.POST.get("action", ""), _unknown)(request, found)
    except Refusal as refusal:
        found.refresh_from_db()
        return _page(request, found, refusal.message)


def _page(request: HttpRequest, vault: Vault, error: str = "") -> HttpResponse:
    keys = ApiKey.objects.filter(project=vault.project, revoked_at=None).order_by("name")
    context: dict[str, Any] = {
        "title": f"Sources and rules of {vault.name}",
        "vault": vault,
        "formats": [(name, FORMATS.get(name, name)) for name in READERS],
        "policies": Vault.POLICIES,
        "hand_edits": Vault.HAND_EDITS,
        "keys": [(key.id, f"{key.name} ({key.prefix}…)", key.id in vault.history_keys) for key in keys],
        "questions": vault.questions.order_by("pk"),
        "error": error,
    }
    return render(request, "console/memory_settings.html", context, status=400 if error else 200)


def _import(request: HttpRequest, vault: Vault) -> HttpResponse:
    upload = request.FILES.get("file")
    if upload is None:
        raise invalid("file", "choose a file to import")
    kind = request.POST.get("format", "")
    if kind not in READERS:
        raise invalid("format", f"format must be one of {', '.join(READERS)}")
    name = base_name(upload.name or f"import.{kind}")
    files.check_quota(vault.project, upload.size or 0, identity_of(request).quota.storage_bytes)
    stored = files.store(upload.chunks(PIECE), name, "user_data", project=vault.project, created_by=actor_of(request))
    complete = "complete" in request.POST
    job = orders.read_export(vault, kind, kind, stored, actor_of(request), complete=complete, delete_file=True)
    return redirect("console:job", job.id)


def _change(request: HttpRequest, vault: Vault) -> HttpResponse:
    sent = request.POST
    body: dict[str, Any] = {name: sent.get(name, "") for name in ("policy", "hand_edits", "model")}
    for name in vault_settings.BOUNDS:
        raw = sent.get(name, "")
        body[name] = int(raw) if raw.isascii() and raw.isdigit() and len(raw) < 10 else -1
    body |= {name: name in sent for name in ("own_history", "evaluation_blocks")}
    body["history_keys"] = sent.getlist("history_keys")
    vault_settings.change(vault, body, identity_of(request), actor_of(request))
    messages.success(request, "Saved. The next run follows these rules.")
    return redirect("console:memory-settings", vault.pk)


def _ask(request: HttpRequest, vault: Vault) -> HttpResponse:
    text = request.POST.get("question", "").strip()
    expected = [line.strip() for line in request.POST.get("expected", "").splitlines() if line.strip()]
    if not text or len(text) > 300:
        raise invalid("question", "a question has 1 to 300 characters")
    if not expected:
        raise invalid("expected", "give at least one text that answers it, one a line")
    Question.objects.update_or_create(
        vault=vault, text=text, defaults={"expected": expected, "negative": "negative" in request.POST}
    )
    audit.record(actor_of(request), "memory.question", text[:80], project=vault.project)
    return redirect("console:memory-settings", vault.pk)


def _unask(request: HttpRequest, vault: Vault) -> HttpResponse:
    number = request.POST.get("question", "")
    if number.isascii() and number.isdigit() and len(number) < 10:
        vault.questions.filter(pk=int(number)).delete()
    return redirect("console:memory-settings", vault.pk)


def _unknown(request: HttpRequest, vault: Vault) -> HttpResponse:
    raise Http404("There is no such action.")


_DO = {"import": _import, "change": _change, "ask": _ask, "unask": _unask}
