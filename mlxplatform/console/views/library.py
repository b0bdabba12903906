"""One model with what was chosen for it, the hub, and the small actions of the library page."""

from __future__ import annotations

import json

from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from mlxplatform.accounts import audit
from mlxplatform.accounts.scopes import OPERATE, READ
from mlxplatform.console.forms import body_of, inputs_for
from mlxplatform.console.page import actor_of, page, project_of
from mlxplatform.inference.contract import Refusal
from mlxplatform.library import adoption, choices, downloads, fit, hub, local_models, reclaim, removal
from mlxplatform.library.machine import this_machine
from mlxplatform.library.presets import FIELDS, KINDS
from mlxplatform.library.views import recent_transfers

#: Longest search looked up.
_MAX_QUERY = 200


@page(OPERATE)
def model(request: HttpRequest) -> HttpResponse:
    """A model's page; named in the query, since names hold slashes."""
    name = (request.POST if request.method == "POST" else request.GET).get("model", "")
    found = local_models.find(name, settings.HOME)
    if found is None:
        raise Http404
    error: Refusal | None = None
    if request.method == "POST":
        try:
            _act(request, found.id)
        except Refusal as refusal:
            error = refusal
        else:
            gone = local_models.find(found.id, settings.HOME) is None
            return redirect("console:models") if gone else redirect(f"{request.path}?model={found.id}")
    choice = choices.of(found.id)
    machine = this_machine(settings.ENV.memory_budget_mb << 20)
    given = request.POST.copy() if error else request.GET.copy()
    if not error:
        given.update({key: value if isinstance(value, str) else json.dumps(value) for key, value in choice.preset.items()})
    context = {
        "title": found.id,
        "model": found,
        "choice": choice,
        "default_kinds": KINDS,
        "fit": fit.assess(found, machine),
        "matrix": fit.matrix(found),
        "matrix_context": fit.MATRIX_CONTEXT,
        "inputs": inputs_for(FIELDS, given, choices={"thinking": ("true", "false")}),
        "error": error,
    }
    return render(request, "console/model.html", context, status=400 if error else 200)


def _act(request: HttpRequest, name: str) -> None:
    """
    Raises:
        Refusal: what was asked for cannot be.
    """
    actor, action = actor_of(request), request.POST.get("action", "")
    if action == "preset":
        body = body_of(request.POST, [field for field in FIELDS if field.kind != "bool"])
        if thinking := request.POST.get("thinking"):
            body["thinking"] = thinking == "true"
        choices.set_preset(name, body)
    elif action in {"pin", "unpin"}:
        choices.set_pinned(name, action == "pin")
    elif action == "default":
        choices.set_default(name)
    elif action == "clear-default":
        choices.clear_default(name)
    elif action == "delete":
        removal.remove(name, actor)
        messages.success(request, f"Deleted {name}.")
        return
    else:
        raise Http404
    audit.record(actor, f"model.{action}", name, after={"preset": choices.of(name).preset})
    messages.success(request, "Kept.")


@page(READ)
def hub_search(request: HttpRequest) -> HttpResponse:
    query = request.GET.get("q", "").strip()[:_MAX_QUERY]
    results, problem = [], ""
    if query:
        try:
            results = hub.search(query)
            problem = "" if results else "Nothing was found."
        except hub.HubError as error:
            problem = str(error)
    context = {
        "title": "Find models",
        "query": query,
        "results": results,
        "problem": problem,
        "here": {model.id for model in local_models.scan(settings.HOME)} if results else set(),
        "transfers": recent_transfers(),
    }
    return render(request, "console/hub.html", context)


@require_POST
@page(OPERATE)
def library_action(request: HttpRequest) -> HttpResponse:
    """Adopt, download, or give disk back."""
    actor, action, name = actor_of(request), request.POST.get("action", ""), request.POST.get("name", "")
    try:
        if action == "adopt":
            job = adoption.submit(request.POST.get("source"), name, None, project=project_of(request), created_by=actor)
        elif action == "download":
            job = downloads.submit(name, project=project_of(request), created_by=actor)
        elif action == "reclaim":
            outcome = reclaim.execute(async_to_sync(removal.serving)(), request.POST.getlist("items"))
            audit.record(actor, "library.reclaim", "disk", after=outcome.describe())
            messages.success(request, f"Deleted {len(outcome.gone)} things.")
            if outcome.kept:
                messages.error(request, f"{len(outcome.kept)} of those shown are in use or gone by now, and were left alone.")
            return redirect("console:models")
        else:
            raise Http404
    except Refusal as refusal:
        messages.error(request, refusal.message)
        return redirect("console:models")
    audit.record(actor, f"model.{action}", job.id, after={"name": name})
    return redirect("console:job", job.id)
