"""Secrets that must be read again (a hub's token), kept encrypted in SQL. The key is derived from the platform's own.

Fernet: AES-128-CBC with an HMAC. A copy of the database alone gives nothing away; the secret key lies beside it in the
data directory, so a copy of the whole directory does.
"""

from __future__ import annotations

import base64
import hmac

from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings

#: Keeps this key apart from every other one derived from the secret key.
PURPOSE = b"mlxplatform datasets hub token 1"


class CannotUnseal(Exception):
    """The secret was sealed under another secret key, or damaged."""


def _fernet() -> Fernet:
    # The secret key is long and random already, so one keyed hash is a sound derivation; no stretching is needed.
    key = hmac.digest(settings.SECRET_KEY.encode(), PURPOSE, "sha256")
    return Fernet(base64.urlsafe_b64encode(key))


def seal(secret: str) -> str:
    return _fernet().encrypt(secret.encode()).decode()


def unseal(sealed: str) -> str:
    """Raises CannotUnseal."""
    try:
        return _fernet().decrypt(sealed.encode()).decode()
    except InvalidToken:
        raise CannotUnseal from None
