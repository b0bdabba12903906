"""Identity and limits at the door of every API request: 401, 403 and 429 in the path's dialect."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta

from asgiref.sync import markcoroutinefunction
from django.http import HttpRequest, HttpResponseBase

from mlxplatform.accounts.identity import Identity, identify
from mlxplatform.accounts.quotas import Standing, admitted
from mlxplatform.accounts.scopes import INFERENCE, needed
from mlxplatform.http.errors import error_response
from mlxplatform.inference.contract import Refusal

#: Paths a key guards. Health is open to load balancers, pages and the admin have their own login.
_GUARDED = ("/v1", "/api", "/stats", "/metrics", "/library", "/downloads", "/fit", "/mcp")


class IdentityMiddleware:
    """Puts ``request.identity`` and ``request.project`` on every guarded request.

    Native async: a stream's cancellation must reach the view without a thread in between.
    """

    async_capable = True
    sync_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]]):
        self.get_response = get_response
        markcoroutinefunction(self)

    async def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.method != "OPTIONS" and _is_guarded(request.path):
            try:
                identity = await identify(request)
            except Refusal as refusal:
                return error_response(request, refusal)
            request.identity = identity  # type: ignore[attr-defined]
            request.project = identity.project  # type: ignore[attr-defined]
        return await self.get_response(request)


def _is_guarded(path: str) -> bool:
    tidy = "/" + path.lstrip("/")
    return any(tidy == root or tidy.startswith(root + "/") for root in _GUARDED)


class QuotaMiddleware:
    """Holds a key's place within its limits for as long as an inference answer runs, streamed or not."""

    async_capable = True
    sync_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]]):
        self.get_response = get_response
        markcoroutinefunction(self)

    async def __call__(self, request: HttpRequest) -> HttpResponseBase:
        identity: Identity | None = getattr(request, "identity", None)
        if identity is None or not identity.key_id or needed(request.method or "GET", request.path) != INFERENCE:
            return await self.get_response(request)
        place = admitted(identity, uuid.uuid4().hex)
        try:
            standing = await place.__aenter__()
        except Refusal as refusal:
            return error_response(request, refusal)
        try:
            response = await self.get_response(request)
        except BaseException:
            await place.__aexit__(None, None, None)
            raise
        if standing is not None:
            _tell(request, response, standing)
        if response.streaming:
            response.streaming_content = _held(response.streaming_content, place)  # type: ignore[attr-defined]
        else:
            await place.__aexit__(None, None, None)
        return response


async def _held(content: AsyncIterator[bytes], place: AbstractAsyncContextManager[object]) -> AsyncIterator[bytes]:
    try:
        async for part in content:
            yield part
    finally:
        await place.__aexit__(None, None, None)
        close = getattr(content, "aclose", None)
        if close is not None:
            await close()


def _tell(request: HttpRequest, response: HttpResponseBase, standing: Standing) -> None:
    """The rate-limit headers clients of each protocol look for."""
    if request.path.startswith("/v1/messages"):
        names = (
            "anthropic-ratelimit-requests-limit",
            "anthropic-ratelimit-requests-remaining",
            "anthropic-ratelimit-requests-reset",
        )
        reset = (datetime.now(UTC) + timedelta(seconds=standing.reset_seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    else:
        names = ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests")
        reset = f"{standing.reset_seconds}s"
    for name, value in zip(names, (standing.limit, standing.remaining, reset), strict=True):
        response[name] = str(value)
