"""Django's page middleware, for pages and signed-in browsers only.

Sessions, CSRF, login, messages and frame headers are synchronous: each costs an asynchronous request one or two hops
through a thread, nine in all. A program that calls the API with a key, or none, needs none of them, so they step
aside unless the path is a page or the request carries a session cookie. Static files are served without a thread
around the rest: the stock WhiteNoise link is synchronous and would hold one for as long as a view runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import markcoroutinefunction, sync_to_async
from django.conf import settings
from django.contrib.auth import middleware as auth
from django.contrib.messages import middleware as messages
from django.contrib.sessions import middleware as sessions
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.middleware import clickjacking, csrf
from whitenoise.middleware import WhiteNoiseMiddleware

from mlxplatform.http.clients import is_encrypted
from mlxplatform.http.errors import dialect_of


def concerns_people(request: HttpRequest) -> bool:
    return dialect_of(request.path) == "page" or settings.SESSION_COOKIE_NAME in request.COOKIES


def _kept_to_tls(request: HttpRequest, response: Any) -> Any:
    """Cookies given over TLS are never sent without it; over plain HTTP, as on this machine, they must be."""
    if is_encrypted(request):
        for name in (settings.SESSION_COOKIE_NAME, settings.CSRF_COOKIE_NAME):
            if name in response.cookies:
                response.cookies[name]["secure"] = True
    return response


class _ForPeople:
    """Mixed in before a stock middleware: passes over what does not concern people."""

    get_response: Callable[[HttpRequest], Any]
    async_mode: bool

    def __call__(self, request: HttpRequest) -> Any:
        if self.async_mode:
            return self.__acall__(request)
        return super().__call__(request) if concerns_people(request) else self.get_response(request)  # type: ignore[misc]

    async def __acall__(self, request: HttpRequest) -> HttpResponseBase:
        if not concerns_people(request):
            return await self.get_response(request)
        return await super().__acall__(request)  # type: ignore[misc]


class SessionMiddleware(_ForPeople, sessions.SessionMiddleware):
    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        return _kept_to_tls(request, super().process_response(request, response))


class CsrfViewMiddleware(_ForPeople, csrf.CsrfViewMiddleware):
    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:  # type: ignore[override]
        return _kept_to_tls(request, super().process_response(request, response))

    async def process_view(self, request: HttpRequest, *view: Any) -> HttpResponseBase | None:  # type: ignore[override]
        return await sync_to_async(super().process_view)(request, *view) if concerns_people(request) else None


class AuthenticationMiddleware(_ForPeople, auth.AuthenticationMiddleware):
    pass


class MessageMiddleware(_ForPeople, messages.MessageMiddleware):
    pass


class FrameMiddleware(_ForPeople, clickjacking.XFrameOptionsMiddleware):
    pass


class StaticFilesMiddleware(WhiteNoiseMiddleware):
    """The files collected at start, read whole in a thread: they are small, and few."""

    async_capable = True
    sync_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]]) -> None:
        super().__init__(get_response)
        markcoroutinefunction(self)

    async def __call__(self, request: HttpRequest) -> HttpResponseBase:
        found = self.files.get(request.path_info)
        if found is None:
            return await self.get_response(request)
        return await sync_to_async(self._answer, thread_sensitive=False)(found, request)

    @staticmethod
    def _answer(found: Any, request: HttpRequest) -> HttpResponse:
        answer = found.get_response(request.method, request.META)
        content = b""
        if answer.file is not None:
            with answer.file:
                content = answer.file.read()
        response = HttpResponse(content, status=int(answer.status))
        del response["Content-Type"]
        for name, value in answer.headers:
            response[name] = value
        return response
