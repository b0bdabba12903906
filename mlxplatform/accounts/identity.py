"""Who is asking: from the headers or the session of a request to one :class:`Identity`.

Rules. A key may come as ``Authorization: Bearer`` or as ``x-api-key``; when both are sent, one valid key
is enough (coding agents send both, one of them stale). No key: a signed-in person's session counts, with
a CSRF token for anything that changes state. Neither: allowed only while no key was ever made, and only
from this machine. It answers in refusals and knows no protocol.
"""

from __future__ import annotations

import ipaddress
import time
from dataclasses import dataclass
from typing import Any

import structlog
from asgiref.sync import sync_to_async
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from rest_framework.authentication import CSRFCheck

from mlxplatform.accounts import keys, people
from mlxplatform.accounts.actors import KEY, PERSON
from mlxplatform.accounts.keys import Quota
from mlxplatform.accounts.models import DEFAULT_PROJECT, ApiKey
from mlxplatform.accounts.scopes import ADMIN, SCOPES, grants, needed
from mlxplatform.http.clients import address_of, is_encrypted
from mlxplatform.inference.contract import Refusal
from mlxplatform.once import Once

#: Seconds a key check is remembered in this process; a revoked key may live on for this long.
_REMEMBER = 2.0
#: Most key checks remembered at once.
_REMEMBER_COUNT = 4096


#: How the headers begin with which proxies, tunnels and balancers say that they pass a request on.
_FORWARDING = (
    "HTTP_FORWARDED",
    "HTTP_X_FORWARDED",
    "HTTP_X_REAL_IP",
    "HTTP_VIA",
    "HTTP_X_CLIENT_IP",
    "HTTP_X_CLUSTER_CLIENT_IP",
) + ("HTTP_X_ORIGINAL_", "HTTP_X_ENVOY_", "HTTP_CF_", "HTTP_TRUE_CLIENT_IP", "HTTP_FLY_CLIENT_IP", "HTTP_TAILSCALE_")

NO_LIMITS = Quota()


@dataclass(frozen=True)
class Identity:
    """Who asks, for which project, and what they may do."""

    actor: str
    project: str
    scopes: frozenset[str]
    key_id: str = ""
    quota: Quota = NO_LIMITS

    @property
    def is_admin(self) -> bool:
        return ADMIN in self.scopes


#: The single user of a machine on which no key exists.
LOCAL = Identity("local", DEFAULT_PROJECT, frozenset(SCOPES))

#: Seconds between two warnings about keys that one address sends unencrypted.
_WARN_EVERY = 3600.0

log = structlog.get_logger(__name__)

_known: dict[str, tuple[float, Identity]] = {}
_warned: dict[str, float] = {}
_keyless: tuple[float, bool] = (0.0, False)


def forget() -> None:
    """Drop what this process remembers about keys, after a change made here."""
    global _keyless
    _known.clear()
    _keyless = (0.0, False)


async def identify(request: HttpRequest) -> Identity:
    """The identity behind ``request``.

    Raises:
        Refusal: 401 without valid credentials, 403 without the scope or the CSRF token.
    """
    offered = offered_keys(request)
    if offered:
        _warn_unencrypted(request)
    identity = await _by_keys(offered) if offered else None
    if identity is None:
        identity = await _by_session(request)
    if identity is None and await _is_open():
        identity = LOCAL if is_loopback(request) else None
    if identity is None:
        message = (
            "Incorrect API key provided." if offered else "An API key is needed: send Authorization: Bearer <key> or x-api-key."
        )
        raise Refusal(401, "invalid_api_key", message)
    scope = needed(request.method or "GET", request.path)
    if not grants(tuple(identity.scopes), scope):
        raise Refusal(403, "missing_scope", f"This key lacks the scope '{scope}'.")
    return identity


async def still_welcome(request: HttpRequest, identity: Identity) -> bool:
    """Whether whoever began a long answer would still be let in: the key not revoked, rotated or expired, the person active."""
    if identity.key_id:
        return await _by_keys(offered_keys(request)) is not None
    if identity.actor.startswith(PERSON):
        return await sync_to_async(people.is_active)(identity.actor.removeprefix(PERSON))
    return True


def _warn_unencrypted(request: HttpRequest) -> None:
    """Say loudly, once an hour and address, that keys cross a network readable by everybody on it."""
    if is_encrypted(request) or is_loopback(request):
        return
    address, now = address_of(request), time.monotonic()
    if _warned.get(address, 0.0) > now:
        return
    if len(_warned) >= _REMEMBER_COUNT:
        _warned.clear()
    _warned[address] = now + _WARN_EVERY
    log.warning("A key arrived over plain HTTP: whoever is on the network can read and use it. Put TLS in front.", client=address)


def offered_keys(request: HttpRequest) -> list[str]:
    """Secrets sent with the request, in the order they are tried."""
    found = []
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        found.append(value.strip())
    if value := request.headers.get("x-api-key", "").strip():
        found.append(value)
    return found


def is_loopback(request: HttpRequest) -> bool:
    """Whether somebody on this machine asks: the socket's peer is, and no proxy on it speaks for another."""
    if any(name.startswith(_FORWARDING) for name in request.META):
        return False
    try:
        return ipaddress.ip_address(request.META.get("REMOTE_ADDR", "")).is_loopback
    except ValueError:
        return False


async def _by_keys(offered: list[str]) -> Identity | None:
    now = time.monotonic()
    missing = []
    for secret in offered:
        mark = keys.digest(secret)
        remembered = _known.get(mark)
        if remembered and remembered[0] > now:
            return remembered[1]
        missing.append((mark, secret))
    for mark, secret in missing:
        key = await sync_to_async(keys.find)(secret)
        if key is not None:
            if len(_known) >= _REMEMBER_COUNT:
                _known.clear()
            identity = _of_key(key)
            _known[mark] = (now + _REMEMBER, identity)
            return identity
    return None


def _of_key(key: ApiKey) -> Identity:
    quota = Quota(key.requests_per_minute, key.tokens_per_day, key.concurrency, key.storage_bytes)
    return Identity(f"{KEY}{key.id}", key.project, frozenset(key.scopes), key.id, quota)


async def _by_session(request: HttpRequest) -> Identity | None:
    if settings.SESSION_COOKIE_NAME not in request.COOKIES:
        return None
    return await sync_to_async(_of_session)(request)


def _of_session(request: HttpRequest) -> Identity | None:
    user: Any = getattr(request, "user", None)
    if user is None or not user.is_authenticated or not user.is_active:
        return None
    check = CSRFCheck(_nothing)
    check.process_request(request)
    if reason := check.process_view(request, _nothing, (), {}):
        raise Refusal(403, "csrf_failed", f"Cross-site protection: {reason}")
    return of_person(user)


def of_person(user: Any) -> Identity:
    """The identity of a signed-in person, without any check of where the request came from."""
    return Identity(f"{PERSON}{user.get_username()}", people.project_of(user), people.scopes_of(user))


def _nothing(request: HttpRequest) -> HttpResponse:
    """Stands where the CSRF check wants a view; it never calls it."""
    return HttpResponse()


async def _is_open() -> bool:
    """Whether this machine may still be used without a key. What is remembered costs no hop to a thread."""
    until, value = _keyless
    return value if until > time.monotonic() else await _look_once()


def _look_whether_open() -> bool:
    global _keyless
    value = settings.ENV.auth == "auto" and not keys.any_key_exists()
    _keyless = (time.monotonic() + _REMEMBER, value)
    return value


_look_once = Once(sync_to_async(_look_whether_open))
