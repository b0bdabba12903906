"""The memory: what waits for review, one change with its diff and source turns, the wiki, runs, and asking for one."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.safestring import mark_safe
from django.views.decorators.http import require_POST

from mlxplatform.accounts import audit
from mlxplatform.accounts.scopes import READ, WRITE
from mlxplatform.console.page import actor_of, page, project_of, seen
from mlxplatform.inference.contract import Refusal
from mlxplatform.memory import changes, forget, orders, reading
from mlxplatform.memory.git import GitFailed
from mlxplatform.memory.models import Change, Conversation, Run, Vault
from mlxplatform.memory.vault import Wiki
from mlxplatform.memory.wiki import html
from mlxplatform.memory.wire import change_card, run_json

#: Rows shown of each list.
_SHOWN = 100


def vaults_seen(request: HttpRequest) -> QuerySet[Vault]:
    """The vaults this person may see. Two projects may have one of the same name, so pages name them by number."""
    return seen(request, Vault.objects.order_by("project", "name"))


def _vault(request: HttpRequest) -> Vault | None:
    """The vault asked for, or the first one there is."""
    asked = request.GET.get("vault") or request.POST.get("vault") or ""
    if asked:
        return (
            vaults_seen(request).filter(pk=int(asked)).first()
            if asked.isascii() and asked.isdigit() and len(asked) < 10
            else None
        )
    return vaults_seen(request).order_by("pk").first()


@page(READ)
def overview(request: HttpRequest) -> HttpResponse:
    vault = _vault(request)
    context: dict[str, Any] = {
        "title": "Memory",
        "vault": vault,
        "vaults": vaults_seen(request),
        "query": request.GET.get("q", ""),
    }
    if vault is not None:
        context["status"] = reading.status(vault)
        context["waiting"] = vault.changes.filter(state="proposed")[:_SHOWN]
        context["recent"] = vault.changes.filter(state__in=("accepted", "reverted")).order_by("-decided_at")[:20]
        context["runs"] = vault.runs.all()[:10]
        context["pages"] = reading.pages(vault)[:_SHOWN]
        context["hits"] = reading.search(vault, context["query"], limit=20) if context["query"].strip() else None
    return render(request, "console/memory.html", context)


@page(READ)
def change(request: HttpRequest, change_id: str) -> HttpResponse:
    return _card(request, _find(request, change_id))


def _find(request: HttpRequest, change_id: str) -> Change:
    changes_seen = seen(request, Change.objects.filter(pk=change_id), "vault__project")
    found = changes_seen.select_related("vault", "run").first()
    if found is None:
        raise Http404("There is no such change.")
    return found


def _card(request: HttpRequest, found: Change, error: str = "") -> HttpResponse:
    card = change_card(found)
    lines = [
        {"text": line, "kind": {"+": "added", "-": "removed", "@": "place"}.get(line[:1], "")}
        for line in card["diff"].splitlines()[2:]
    ]
    context = {
        "title": found.summary or str(found),
        "card": card,
        "lines": lines,
        "error": error,
        "open": found.state == "proposed",
    }
    return render(request, "console/memory_change.html", context, status=409 if error else 200)


@page(WRITE)
@require_POST
def change_action(request: HttpRequest, change_id: str) -> HttpResponse:
    found, by = _find(request, change_id), actor_of(request)
    action = request.POST.get("action", "")
    try:
        if action == "accept":
            changes.accept(found, by)
        elif action == "accept-edited":
            changes.accept(found, by, request.POST.get("text", "").replace("\r\n", "\n"), request.POST.get("base"))
        elif action == "reject":
            changes.reject(found, by)
        elif action == "revert":
            changes.revert(found, by)
        else:
            raise Http404("There is no such action.")
    except Refusal as refusal:
        return _card(request, _find(request, change_id), refusal.message)
    audit.record(by, f"memory.{action.partition('-')[0]}", found.id, project=found.vault.project, after={"page": found.stem})
    messages.success(
        request,
        {"reject": "Rejected; it will not come back.", "revert": "Taken back with a commit of its own."}.get(
            action, "Committed."
        ),
    )
    following = found.vault.changes.filter(state="proposed").first()
    if following is not None and action != "revert":
        return redirect("console:memory-change", following.pk)
    return redirect("console:memory")


@page(READ)
def article(request: HttpRequest, vault: int, name: str) -> HttpResponse:
    row = vaults_seen(request).filter(pk=vault).first()
    if row is None:
        raise Http404("There is no such vault.")
    try:
        shown = reading.article(row, name)
        links = reading.links(row, name)
        commits = reading.history(row, name, 20)
        step = reading.diff(row, name, request.GET["rev"]) if request.GET.get("rev") else ""
    except Refusal as refusal:
        raise Http404(refusal.message) from None
    known = {stem.casefold(): stem for stem in row.pages.filter(folder="articles").values_list("stem", flat=True)}

    def url_of(stem: str) -> str | None:
        target = known.get(stem.casefold())
        return reverse("console:memory-page", args=[row.pk, target]) if target else None

    body = (
        shown["content"].split("\n", 1)[1] if shown["content"].startswith("# ") and "\n" in shown["content"] else shown["content"]
    )
    # Safe: html.render lets no markup of the page through.
    context = {"title": shown["title"], "vault": row, "page": shown, "html": mark_safe(html.render(body, url_of)), "links": links}  # noqa: S308
    return render(request, "console/memory_page.html", {**context, "commits": commits, "step": step})


@page(READ)
def run(request: HttpRequest, run_id: str) -> HttpResponse:
    found = seen(request, Run.objects.filter(pk=run_id).select_related("vault"), "vault__project").first()
    if found is None:
        raise Http404("There is no such run.")
    context = {"title": "Synthesis run", "run": run_json(found), "row": found, "changes": found.changes.all()[:_SHOWN]}
    return render(request, "console/memory_run.html", context)


@page(WRITE)
@require_POST
def action(request: HttpRequest) -> HttpResponse:
    """Make a vault, start a run, revert one, forget a page, a statement or a conversation."""
    by = actor_of(request)
    wanted = request.POST.get("action", "")
    vault = _vault(request)
    try:
        if wanted == "init":
            made, _ = Vault.objects.get_or_create(name=orders.DEFAULT_VAULT, project=project_of(request))
            Wiki.of(made).set_up()
            audit.record(by, "memory.init", made.name, project=made.project)
            messages.success(request, "Your memory is ready. Import conversations, then start a run.")
        elif vault is None:
            raise Http404("There is no vault.")
        elif wanted == "synthesize":
            job = orders.synthesize({"vault": vault.name}, vault.project, by)
            return redirect("console:job", job.id)
        elif wanted == "revert-run":
            found = vault.runs.filter(pk=request.POST.get("run", "")).first()
            if found is None:
                raise Http404("There is no such run.")
            reverted, refused = changes.revert_run(found, by)
            audit.record(by, "memory.revert_run", found.id, project=vault.project, after={"reverted": reverted})
            messages.success(
                request,
                f"{len(reverted)} changes taken back"
                + (f", {len(refused)} could not be: {refused[0]['error']}" if refused else "."),
            )
        elif wanted == "forget":
            done = _forget(vault, request.POST.get("what", ""), request.POST.get("value", "").strip(), by)
            messages.success(request, f"Forgotten on {len(done.pages)} pages. {done.waiting}")
        else:
            raise Http404("There is no such action.")
    except Refusal as refusal:
        messages.error(request, refusal.message)
    except GitFailed as error:
        messages.error(request, error.message)
    return redirect("console:memory")


def _forget(vault: Vault, what: str, value: str, by: str) -> forget.Forgotten:
    if not value:
        raise Refusal(400, "missing_required_parameter", "say what to forget", param="value")
    audit.record(by, "memory.forget", what[:40], project=vault.project)
    if what == "statement":
        return forget.fact(vault, value, by)
    if what == "page":
        return forget.page(vault, value.replace(" ", "_"), by)
    target = Conversation.objects.filter(vault=vault, hash=value.removeprefix("conv:")).first()
    if target is None:
        raise Refusal(404, "conversation_not_found", "there is no such conversation", param="value")
    return forget.conversation(vault, target, by)
