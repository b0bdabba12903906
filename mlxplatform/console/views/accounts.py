"""Usage per key, model and day; and the keys themselves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib import messages
from django.db.models import Sum
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from mlxplatform.accounts import identity, keys, people
from mlxplatform.accounts.models import DEFAULT_PROJECT, ApiKey, UsageDay
from mlxplatform.accounts.scopes import ADMIN, DEFAULT_SCOPES, READ, ROLES, SCOPES
from mlxplatform.accounts.serializers import NewKeySerializer
from mlxplatform.console.page import actor_of, page, seen
from mlxplatform.inference.contract import Refusal

#: Days the usage page looks back.
_DAYS = 30
_LIMITS = ("requests_per_minute", "tokens_per_day", "concurrency", "storage_bytes")
_COUNTS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")


@page(READ)
def usage(request: HttpRequest) -> HttpResponse:
    since = datetime.now(UTC).date() - timedelta(days=_DAYS - 1)
    recent = seen(request, UsageDay.objects.filter(day__gte=since))
    sums = {name: Sum(name) for name in _COUNTS}
    context = {
        "title": "Usage",
        "days": _DAYS,
        "by_day": recent.order_by("day").values("day").annotate(**sums),
        "by_model": recent.order_by("model").values("model").annotate(**sums),
        "by_key": recent.order_by("key_id").values("key_id", "project").annotate(**sums),
    }
    return render(request, "console/usage.html", context)


@page(ADMIN)
def key_list(request: HttpRequest) -> HttpResponse:
    return _key_page(request)


def _key_page(request: HttpRequest, secret: str = "", error: Refusal | None = None) -> HttpResponse:
    given = request.POST if error else {}
    context = {
        "title": "Keys",
        "keys": ApiKey.objects.all(),
        "scopes": SCOPES,
        "chosen": request.POST.getlist("scopes") if error else DEFAULT_SCOPES,
        "given": given,
        "more_given": any(given.get(name) for name in ("expires_at", *_LIMITS)),
        "secret": secret,
        "error": error,
    }
    return render(request, "console/keys.html", context, status=400 if error else 200)


@require_POST
@page(ADMIN)
def key_action(request: HttpRequest) -> HttpResponse:
    """Make, rotate or revoke. A new secret is on the answering page and nowhere else: no session, no message keeps it."""
    actor = actor_of(request)
    secret = ""
    try:
        match request.POST.get("action"):
            case "create":
                secret = _new_key(request, actor)
            case "rotate":
                secret = keys.rotate(_key(request), actor=actor)
            case "revoke":
                key = _key(request)
                keys.revoke(key, actor=actor)
                messages.success(request, f"{key.name} is revoked.")
            case _:
                raise Http404
    except Refusal as refusal:
        return _key_page(request, error=refusal)
    identity.forget()
    return _key_page(request, secret) if secret else redirect("console:keys")


def _new_key(request: HttpRequest, actor: str) -> str:
    asked: dict[str, Any] = {"name": request.POST.get("name", ""), "scopes": request.POST.getlist("scopes")}
    for name in ("project", "expires_at", *_LIMITS):
        if request.POST.get(name):
            asked[name] = request.POST[name]
    form = NewKeySerializer(data=asked)
    if not form.is_valid():
        field, problems = next(iter(form.errors.items()))
        raise Refusal(400, "invalid", f"{field}: {problems[0]}", param=field)
    values = form.validated_data
    _, secret = keys.create(
        values["name"],
        project=values["project"],
        scopes=values["scopes"],
        expires_at=values["expires_at"],
        quota=keys.Quota(**{name: values[name] for name in _LIMITS}),
        owner_id=request.user.pk,
        actor=actor,
    )
    return secret


def _key(request: HttpRequest) -> ApiKey:
    key = ApiKey.objects.filter(pk=request.POST.get("key")).first()
    if key is None:
        raise Http404
    return key


@page(ADMIN)
def people_list(request: HttpRequest) -> HttpResponse:
    return _people_page(request)


def _people_page(request: HttpRequest, name: str = "", password: str = "", error: Refusal | None = None) -> HttpResponse:
    context = {
        "title": "People",
        "error": error,
        "given": request.POST
        if error and request.POST.get("action") == "add"
        else {"role": "member", "project": DEFAULT_PROJECT},
        "people": people.everybody(),
        "roles": ROLES,
        "password": {"name": name, "password": password} if password else None,
    }
    return render(request, "console/people.html", context, status=400 if error else 200)


@require_POST
@page(ADMIN)
def people_action(request: HttpRequest) -> HttpResponse:
    """Add somebody, change their role or project, give a new password, keep them out or let them in."""
    actor, asked = actor_of(request), request.POST
    name, role, project = asked.get("name", "").strip(), asked.get("role", ""), asked.get("project", "").strip()
    project = project or DEFAULT_PROJECT
    password = ""
    try:
        match asked.get("action"):
            case "add":
                password = people.add(name, role, project, actor=actor)
            case "change":
                people.change(name, role, project, actor=actor)
                messages.success(request, f"{name} is {role} in {project}.")
            case "password":
                password = people.reset_password(name, actor=actor)
            case "enable" | "disable" as wanted:
                people.set_active(name, wanted == "enable", actor=actor)
                messages.success(request, f"{name} may {'' if wanted == 'enable' else 'not '}sign in.")
            case _:
                raise Http404
    except Refusal as refusal:
        return _people_page(request, error=refusal)
    return _people_page(request, name, password) if password else redirect("console:people")
