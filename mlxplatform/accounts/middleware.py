"""Identity and limits at the door of every API request: 401, 403 and 429 in the path's dialect."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta

import structlog
from asgiref.sync import markcoroutinefunction
from django.http import HttpRequest, HttpResponseBase

from mlxplatform.accounts.identity import LOCAL, Identity, identify, still_welcome
from mlxplatform.accounts.quotas import Standing, admitted, check_allowance
from mlxplatform.accounts.scopes import INFERENCE, needed, spends
from mlxplatform.broker.connections import BROKER_ERRORS
from mlxplatform.http.errors import error_response
from mlxplatform.http.views import DATABASE_ERRORS, unavailable
from mlxplatform.inference.contract import Refusal

log = structlog.get_logger(__name__)

#: Seconds after which a running stream's key is looked at again.
RECHECK_SECONDS = 5.0
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
            except (*BROKER_ERRORS, *DATABASE_ERRORS) as error:
                return unavailable(request, error)
            request.identity = identity  # type: ignore[attr-defined]
            request.project = identity.project  # type: ignore[attr-defined]
            response = await self.get_response(request)
            if response.streaming and response.is_async and identity is not LOCAL:  # type: ignore[attr-defined]
                response.streaming_content = _while_welcome(response.streaming_content, request, identity)  # type: ignore[attr-defined]
            return response
        return await self.get_response(request)


async def _while_welcome(content: AsyncIterator[bytes], request: HttpRequest, identity: Identity) -> AsyncIterator[bytes]:
    """A stream ends with the key that asked for it. Streams have heartbeats, so the question is asked of silent ones too."""
    asked = time.monotonic()
    try:
        async for part in content:
            if time.monotonic() - asked >= RECHECK_SECONDS:
                if not await still_welcome(request, identity):
                    log.info("stream ended with its key", actor=identity.actor, path=request.path)
                    return
                asked = time.monotonic()
            yield part
    finally:
        close = getattr(content, "aclose", None)
        if close is not None:
            await close()


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
        if identity is None or not identity.key_id:
            return await self.get_response(request)
        method = request.method or "GET"
        place = admitted(identity, uuid.uuid4().hex) if needed(method, request.path) == INFERENCE else None
        try:
            if spends(method, request.path):
                await check_allowance(identity)
            standing = await place.__aenter__() if place is not None else None
        except Refusal as refusal:
            return error_response(request, refusal)
        except BROKER_ERRORS as error:
            return unavailable(request, error)
        if place is None:
            return await self.get_response(request)
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
