"""What every console page has in common: a login, a scope, and a policy that lets no foreign script run."""

from __future__ import annotations

import functools
from collections.abc import Callable

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse

from mlxplatform.accounts.identity import user_scopes
from mlxplatform.accounts.scopes import grants

#: No inline script, nothing from elsewhere; charts set inline style attributes, hence style-src-attr.
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; form-action 'self'; base-uri 'none'; object-src 'none'"
)

View = Callable[..., HttpResponse]


def page(scope: str) -> Callable[[View], View]:
    """Decorate a page's view: signed in, holding ``scope``, and served under :data:`POLICY`."""

    def decorate(view: View) -> View:
        @functools.wraps(view)
        def guarded(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
            if not grants(tuple(user_scopes(request.user)), scope):
                raise PermissionDenied
            response = view(request, *args, **kwargs)
            response["Content-Security-Policy"] = POLICY
            response["Cache-Control"] = "no-store"
            return response

        return login_required(guarded)

    return decorate
