"""Making, checking, rotating and revoking API keys."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from mlxplatform.accounts import audit
from mlxplatform.accounts.models import DEFAULT_PROJECT, ApiKey
from mlxplatform.accounts.scopes import DEFAULT_SCOPES, SCOPES
from mlxplatform.inference.contract import Refusal

#: Marks our keys so that secret scanners and people recognise them.
KEY_PREFIX = "sk-mlxp-"
#: Characters of a key that may be shown afterwards.
_SHOWN = len(KEY_PREFIX) + 4
#: How stale last_used_at may be, seconds: one write a minute for a busy key, not one a request.
_LAST_USED_RESOLUTION = 60


@dataclass(frozen=True)
class Quota:
    """Limits of one key; 0 is none."""

    requests_per_minute: int = 0
    tokens_per_day: int = 0
    concurrency: int = 0
    storage_bytes: int = 0


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


@transaction.atomic
def create(
    name: str,
    *,
    project: str = DEFAULT_PROJECT,
    scopes: Iterable[str] = DEFAULT_SCOPES,
    expires_at: datetime | None = None,
    quota: Quota = Quota(),
    owner_id: int | None = None,
    actor: str = "local",
) -> tuple[ApiKey, str]:
    """Make a key; the second value is the secret, which nothing can show again.

    Raises:
        Refusal: an unknown scope, or an expiry in the past.
    """
    wanted = sorted(set(scopes))
    unknown = [scope for scope in wanted if scope not in SCOPES]
    if unknown or not wanted:
        raise Refusal(400, "invalid_scope", f"scopes must be some of {', '.join(SCOPES)}", param="scopes")
    if expires_at is not None and expires_at <= timezone.now():
        raise Refusal(400, "invalid_expiry", "expires_at must lie in the future", param="expires_at")
    secret = KEY_PREFIX + secrets.token_urlsafe(32)
    key = ApiKey.objects.create(
        name=name,
        prefix=secret[:_SHOWN],
        digest=digest(secret),
        project=project,
        scopes=wanted,
        expires_at=expires_at,
        owner_id=owner_id,
        requests_per_minute=quota.requests_per_minute,
        tokens_per_day=quota.tokens_per_day,
        concurrency=quota.concurrency,
        storage_bytes=quota.storage_bytes,
    )
    audit.record(actor, "key.create", key.id, project=project, after={"name": name, "scopes": wanted})
    return key, secret


@transaction.atomic
def rotate(key: ApiKey, *, actor: str = "local") -> str:
    """Replace the secret of ``key``; the old one stops working at once."""
    secret = KEY_PREFIX + secrets.token_urlsafe(32)
    before = key.prefix
    key.prefix, key.digest = secret[:_SHOWN], digest(secret)
    key.save(update_fields=["prefix", "digest"])
    audit.record(actor, "key.rotate", key.id, project=key.project, before={"prefix": before}, after={"prefix": key.prefix})
    return secret


@transaction.atomic
def revoke(key: ApiKey, *, actor: str = "local") -> None:
    """Stop ``key`` for good. Revoking twice changes nothing."""
    if key.revoked_at is None:
        key.revoked_at = timezone.now()
        key.save(update_fields=["revoked_at"])
        audit.record(actor, "key.revoke", key.id, project=key.project)


def find(secret: str) -> ApiKey | None:
    """The active key with this secret, or None. Notes its use at most once a minute."""
    key = ApiKey.objects.filter(digest=digest(secret)).first()
    if key is None or not key.is_active:
        return None
    now = timezone.now()
    if key.last_used_at is None or (now - key.last_used_at).total_seconds() > _LAST_USED_RESOLUTION:
        ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)
    return key


def any_key_exists() -> bool:
    """Whether a key was ever made; from then on nobody enters without one, revoked or not."""
    return ApiKey.objects.exists()
