"""The first middleware: who may talk to this server from where, and a name for every request.

Checked in order: Host (a DNS name rebound to 127.0.0.1 is not ours), Origin and Sec-Fetch-Site (a web page must not
drive a local server), the media types a page can send without asking. Answers CORS preflights for the allow-list.
Every answer carries the request's id. Keys and scopes are not decided here: the accounts app does that when asked.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

import structlog
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.http.request import split_domain_port, validate_host

from mlxplatform.http.errors import dialect_of, error_response
from mlxplatform.inference.contract import Refusal

SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
#: Media types a form or a script can send across origins without a preflight. Multipart stays allowed (uploads need
#: it): browsers always send Origin with it, and that is checked.
PREFLIGHT_FREE = {"text/plain", "application/x-www-form-urlencoded"}
#: What a browser says of a request that a person or our own page made. "same-site" is a page of another port or subdomain.
OWN_FETCHES = {"none", "same-origin"}
#: A client's own request id is kept when it looks like one.
_REQUEST_ID = re.compile(r"^[A-Za-z0-9._:-]{1,64}\Z")
#: Seconds a browser may remember a preflight.
PREFLIGHT_AGE = "600"
#: Longest value of a query. A search in SQLite takes 50,000 bytes of pattern, and a character may become fourteen.
QUERY_CHARS = 3_000
EXPOSED_HEADERS = "x-request-id, request-id, warning, retry-after, x-mlxplatform-ignored, x-rows-left-out"


class GuardMiddleware:
    """Async only: a synchronous link would put every view behind a thread and hide disconnects from it."""

    async_capable = True
    sync_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    async def __call__(self, request: HttpRequest) -> HttpResponseBase:
        request.request_id = request_id(request)  # type: ignore[attr-defined]
        request.project = "default"  # type: ignore[attr-defined]
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request=request.request_id)  # type: ignore[attr-defined]
        origin = request.headers.get("Origin")
        try:
            check_host(request)
            allowed_origin = check_origin(request, origin)
            check_address(request)
            check_media(request)
        except Refusal as refusal:
            return self._named(request, error_response(request, refusal))
        if request.method == "OPTIONS" and origin and "Access-Control-Request-Method" in request.headers:
            response: HttpResponseBase = preflight(request)
        else:
            response = await self.get_response(request)
        if allowed_origin:
            response["Access-Control-Allow-Origin"] = allowed_origin
            response["Access-Control-Expose-Headers"] = EXPOSED_HEADERS
            response["Vary"] = "Origin"
        return self._named(request, response)

    @staticmethod
    def _named(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        identity = request.request_id  # type: ignore[attr-defined]
        response["x-request-id"] = identity
        # What a client or a model stored is never guessed to be a page.
        response["X-Content-Type-Options"] = "nosniff"
        if dialect_of(request.path) == "anthropic":
            response["request-id"] = identity
        return response


class SocketGuard:
    """The same for WebSockets, to which browsers apply no same-origin rule: Host, and Origin where there is one.

    Programs send no Origin; they are asked for their key further on. A page of another port of this machine is a page of
    another site.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        request = ASGIRequest({**scope, "type": "http", "method": "GET"}, BytesIO())
        origin = request.headers.get("Origin")
        try:
            check_host(request)
            welcome = origin is None or is_listed(origin) or same_origin(request, origin)
        except Refusal:
            welcome = False
        if welcome:
            await self._app(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close"})  # before accepting: the handshake is answered with 403


def request_id(request: HttpRequest) -> str:
    given = request.headers.get("x-request-id", "")
    return given if _REQUEST_ID.match(given) else f"req_{secrets.token_hex(12)}"


def check_host(request: HttpRequest) -> None:
    domain, _ = split_domain_port(request.META.get("HTTP_HOST") or request.META.get("SERVER_NAME", ""))
    if not domain or not validate_host(domain, settings.ALLOWED_HOSTS):
        raise Refusal(
            403,
            "host_not_allowed",
            "This server does not answer to the name in the Host header. Names are listed in MLXPLATFORM_ALLOWED_HOSTS.",
        )


def check_origin(request: HttpRequest, origin: str | None) -> str | None:
    """The origin to allow in the answer's CORS headers, None for same-origin and non-browser requests.

    Raises:
        Refusal: another site's page tries to change or start something.
    """
    if origin is not None:
        if is_listed(origin):
            return origin
        if same_origin(request, origin):
            return None
        if request.method not in SAFE_METHODS or "Access-Control-Request-Method" in request.headers:
            raise Refusal(
                403,
                "origin_not_allowed",
                "Pages of other sites may not call this server. Allowed origins are listed in MLXPLATFORM_CORS_ORIGINS.",
            )
    elif request.method not in SAFE_METHODS and request.headers.get("Sec-Fetch-Site", "none") not in OWN_FETCHES:
        raise Refusal(403, "origin_not_allowed", "Pages of other sites may not call this server.")
    return None


def is_listed(origin: str) -> bool:
    return origin in settings.ENV.cors_origins or "*" in settings.ENV.cors_origins


def same_origin(request: HttpRequest, origin: str) -> bool:
    try:
        parts = urlsplit(origin)
        return bool(parts.netloc) and parts.netloc.lower() == request.META.get("HTTP_HOST", "").lower()
    except ValueError:
        return False


def check_address(request: HttpRequest) -> None:
    """No id, name or filter holds a NUL character or a book: databases fail on these instead of finding nothing."""
    if "\0" in request.path:
        raise Refusal(404, "not_found", "There is nothing of that name: it holds a NUL character.")
    if "%00" in request.META.get("QUERY_STRING", ""):
        for name, values in request.GET.lists():
            if "\0" in name or any("\0" in value for value in values):
                raise Refusal(400, "invalid_value", "The value holds a NUL character.", param=name.replace("\0", ""))
    if len(request.META.get("QUERY_STRING", "")) > QUERY_CHARS:
        for name, values in request.GET.lists():
            if any(len(value) > QUERY_CHARS for value in values):
                raise Refusal(400, "invalid_value", f"The value is longer than {QUERY_CHARS} characters.", param=name[:100])


def check_media(request: HttpRequest) -> None:
    if request.method in SAFE_METHODS or dialect_of(request.path) == "page":
        return
    if request.content_type in PREFLIGHT_FREE:
        raise Refusal(
            415,
            "unsupported_media_type",
            f"Send JSON with the header Content-Type: application/json, not {request.content_type}.",
        )


def preflight(request: HttpRequest) -> HttpResponse:
    response = HttpResponse(status=204)
    response["Access-Control-Allow-Methods"] = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
    asked = request.headers.get("Access-Control-Request-Headers", "content-type, authorization")
    response["Access-Control-Allow-Headers"] = asked
    response["Access-Control-Max-Age"] = PREFLIGHT_AGE
    return response
