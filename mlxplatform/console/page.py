"""What every console page has in common: a login, a scope, a project, and a policy that lets no foreign script run.

A page's request carries the same ``identity`` and ``project`` as an API request, so that pages ask the same questions
of the apps: what may this person see, in which project does what they make belong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import structlog
from django.contrib.auth.views import redirect_to_login
from django.db import InterfaceError, OperationalError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render, resolve_url
from django.utils.http import url_has_allowed_host_and_scheme

from mlxplatform.accounts.identity import Identity, of_person
from mlxplatform.accounts.scopes import grants

#: No inline script, nothing from elsewhere; charts set inline style attributes, hence style-src-attr.
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; form-action 'self'; base-uri 'none'; object-src 'none'"
)

log = structlog.get_logger(__name__)

View = Callable[..., HttpResponse]


def page(scope: str) -> Callable[[View], View]:
    """Decorate a page's view: signed in, holding ``scope``, and served under :data:`POLICY`."""

    def decorate(view: View) -> View:
        @functools.wraps(view)
        def guarded(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
            identity = of_person(request.user)
            request.identity = identity  # type: ignore[attr-defined]
            request.project = identity.project  # type: ignore[attr-defined]
            if scope and not grants(tuple(identity.scopes), scope):
                context = {"title": "Not for your account", "scope": scope, "scopes": sorted(identity.scopes)}
                return _dressed(render(request, "console/forbidden.html", context, status=403))
            if any("\0" in value for _, values in request.POST.lists() for value in values):
                return _dressed(HttpResponse("A value holds a NUL character.\n", status=400, content_type="text/plain"))
            try:
                return _dressed(view(request, *args, **kwargs))
            except (OperationalError, InterfaceError) as error:
                log.warning("database unavailable", path=request.path, error=type(error).__name__)
                words = "The database is busy or not reachable. Try again shortly.\n"
                return _dressed(HttpResponse(words, status=503, content_type="text/plain", headers={"Retry-After": "2"}))

        @functools.wraps(view)
        def signed(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
            if request.user.is_authenticated:
                return guarded(request, *args, **kwargs)
            return _dressed(redirect_to_login(_way_back(request)))

        return signed

    return decorate


def _way_back(request: HttpRequest) -> str:
    """Where to go after signing in again. What a form was sent to may be no page: back to the one it was on, which fills
    itself in again (page.js)."""
    if request.method in {"GET", "HEAD"}:
        return request.get_full_path()
    page = request.headers.get("Referer", "")
    if not url_has_allowed_host_and_scheme(page, {request.get_host()}):
        return resolve_url("console:home")
    parts = urlsplit(page)
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


#: For pages that concern nobody but the person who looks.
signed_in = page("")


def _dressed(response: HttpResponse) -> HttpResponse:
    response["Content-Security-Policy"] = POLICY
    response["Cache-Control"] = "no-store"
    response["Referrer-Policy"] = "same-origin"
    return response


def identity_of(request: HttpRequest) -> Identity:
    return request.identity  # type: ignore[attr-defined]


def actor_of(request: HttpRequest) -> str:
    """Who acts, as the audit log and created_by name them."""
    return identity_of(request).actor


def project_of(request: HttpRequest) -> str:
    """The project that what is made on this page belongs to."""
    return identity_of(request).project


def sight_of(request: HttpRequest) -> str | None:
    """The one project this person sees; None for administrators, who see all."""
    identity = identity_of(request)
    return None if identity.is_admin else identity.project


def seen(request: HttpRequest, rows: QuerySet[Any], by: str = "project") -> QuerySet[Any]:
    """The rows this person may see; ``by`` is the path to the column that names their project."""
    project = sight_of(request)
    return rows if project is None else rows.filter(**{by: project})
