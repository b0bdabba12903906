"""Usage per key, model and day; and the keys themselves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.contrib import messages
from django.db.models import Sum
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from mlxplatform.accounts import identity, keys
from mlxplatform.accounts.models import ApiKey, UsageDay
from mlxplatform.accounts.scopes import ADMIN, READ, SCOPES
from mlxplatform.accounts.serializers import NewKeySerializer
from mlxplatform.console.page import page
from mlxplatform.inference.contract import Refusal

#: Days the usage page looks back.
_DAYS = 30
_COUNTS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")


@page(READ)
def usage(request: HttpRequest) -> HttpResponse:
    since = datetime.now(UTC).date() - timedelta(days=_DAYS - 1)
    recent = UsageDay.objects.filter(day__gte=since)
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
    context = {"title": "Keys", "keys": ApiKey.objects.all(), "scopes": SCOPES, "secret": request.session.pop("new_key", None)}
    return render(request, "console/keys.html", context)


@require_POST
@page(ADMIN)
def key_action(request: HttpRequest) -> HttpResponseRedirect:
    """Make, rotate or revoke. A new secret goes through the session, to be shown on the next page once."""
    actor = f"user:{request.user.get_username()}"
    action = request.POST.get("action")
    try:
        if action == "create":
            form = NewKeySerializer(
                data={"name": request.POST.get("name", ""), "scopes": request.POST.getlist("scopes"), **_project(request)}
            )
            if not form.is_valid():
                field, problems = next(iter(form.errors.items()))
                raise Refusal(400, "invalid", f"{field}: {problems[0]}", param=field)
            values = form.validated_data
            _, secret = keys.create(
                values["name"], project=values["project"], scopes=values["scopes"], owner_id=request.user.pk, actor=actor
            )
            request.session["new_key"] = secret
        elif action in {"rotate", "revoke"}:
            key = ApiKey.objects.filter(pk=request.POST.get("key")).first()
            if key is None:
                raise Http404
            if action == "rotate":
                request.session["new_key"] = keys.rotate(key, actor=actor)
            else:
                keys.revoke(key, actor=actor)
                messages.success(request, f"{key.name} is revoked.")
        else:
            raise Http404
    except Refusal as refusal:
        messages.error(request, refusal.message)
    identity.forget()
    return redirect("console:keys")


def _project(request: HttpRequest) -> dict[str, str]:
    return {"project": request.POST["project"]} if request.POST.get("project") else {}
