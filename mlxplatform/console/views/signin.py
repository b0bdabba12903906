"""Signing in and out, and changing one's own password: the only pages that nobody has to be signed in for."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth import forms, login, logout, update_session_auth_hash
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render, resolve_url
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST

from mlxplatform.accounts import audit, people, throttle
from mlxplatform.console.page import POLICY, signed_in
from mlxplatform.http.clients import address_of, is_encrypted, neighbourhood
from mlxplatform.inference.contract import Refusal

WRONG = "The name and the password do not belong together."


@sensitive_post_parameters("password")
@csrf_protect
@never_cache
def sign_in(request: HttpRequest) -> HttpResponse:
    """Every refusal looks the same, whether the account exists or not."""
    target = _next(request)
    if request.user.is_authenticated and request.method == "GET":
        return HttpResponseRedirect(target)
    error, status, headers = "", 200, {}
    if request.method == "POST":
        try:
            if _signed_in(request):
                return HttpResponseRedirect(target)
            error = WRONG
        except Refusal as refusal:
            error, status = refusal.message, refusal.status
            headers["Retry-After"] = str(refusal.retry_after)
    context = {
        "title": "Sign in",
        "error": error,
        "next": target,
        "name": request.POST.get("username", "")[:150],
        "unencrypted": not is_encrypted(request) and not _is_local(request),
    }
    answer = render(request, "console/login.html", context, status=status)
    answer["Content-Security-Policy"] = POLICY
    for name, value in headers.items():
        answer[name] = value
    return answer


def _signed_in(request: HttpRequest) -> bool:
    name = request.POST.get("username", "")
    attempt = throttle.begin(name, neighbourhood(address_of(request)))
    form = forms.AuthenticationForm(request, data=request.POST)
    if not form.is_valid():
        return False
    throttle.forgive(attempt)
    user = form.get_user()
    login(request, user)
    audit.record(f"user:{user.get_username()}", "person.sign_in", user.get_username())
    return True


@require_POST
def sign_out(request: HttpRequest) -> HttpResponseRedirect:
    logout(request)
    return redirect("console:sign-in")


@sensitive_post_parameters()
@signed_in
def password(request: HttpRequest) -> HttpResponse:
    """One's own password; the old one is asked for, under the same limits as signing in."""
    error, status = "", 200
    if request.method == "POST":
        try:
            _change_password(request)
        except Refusal as refusal:
            error, status = refusal.message, refusal.status
        else:
            messages.success(request, "Your password is changed. Other browsers are signed out.")
            return redirect("console:home")
    return render(request, "console/password.html", {"title": "Your password", "error": error}, status=status)


def _change_password(request: HttpRequest) -> None:
    user = people.find(request.user.get_username())
    name = user.get_username()
    attempt = throttle.begin(name, neighbourhood(address_of(request)))
    if not user.check_password(request.POST.get("old", "")):
        raise Refusal(400, "wrong_password", "The old password is not right.", param="old")
    throttle.forgive(attempt)
    people.check_password(request.POST.get("new", ""), user)
    people.reset_password(name, actor=f"user:{name}", password=request.POST["new"])
    user.refresh_from_db()
    update_session_auth_hash(request, user)


def _next(request: HttpRequest) -> str:
    """Where to go afterwards: a page of this server, or home."""
    wanted = request.POST.get("next") or request.GET.get("next") or ""
    safe = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, require_https=request.is_secure())
    return wanted if safe else resolve_url("console:home")


def _is_local(request: HttpRequest) -> bool:
    from mlxplatform.accounts.identity import is_loopback

    return is_loopback(request)
