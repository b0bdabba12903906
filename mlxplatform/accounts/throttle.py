"""Guessing passwords is slow: how many wrong ones an account and an address may try, counted in SQL.

Every attempt is noted as wrong before the password is looked at and forgiven when it was right, so that a thousand
attempts at once count as a thousand. Counts live in the database: they outlast any process. Three limits: an address
guessing one account, an address guessing around, and one account guessed from everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from mlxplatform.accounts.models import SignInFailure
from mlxplatform.inference.contract import Refusal

#: How long a wrong password counts.
WINDOW = timedelta(minutes=15)
#: Wrong passwords for one account from one address: typing mistakes, not a search.
PER_ACCOUNT_AND_ADDRESS = 5
#: Wrong passwords from one address for whatever accounts; an office behind one address still gets in.
PER_ADDRESS = 30
#: Wrong passwords for one account from anywhere. High: whoever knows a name must not be able to lock its owner out cheaply.
PER_ACCOUNT = 100


@dataclass(frozen=True)
class Attempt:
    """A sign-in that is being looked at."""

    row: int
    account: str
    address: str


@transaction.atomic
def begin(account: str, address: str) -> Attempt:
    """Count one attempt.

    Raises:
        Refusal: 429, with the seconds until the oldest counted one no longer counts.
    """
    account = account.strip().casefold()[:150]
    now = timezone.now()
    recent = SignInFailure.objects.filter(at__gt=now - WINDOW)
    for counted, limit in (
        (recent.filter(account=account, address=address), PER_ACCOUNT_AND_ADDRESS),
        (recent.filter(address=address), PER_ADDRESS),
        (recent.filter(account=account), PER_ACCOUNT),
    ):
        latest = list(counted.order_by("-at").values_list("at", flat=True)[:limit])
        if len(latest) >= limit:
            wait = max(1, int((latest[-1] + WINDOW - now).total_seconds()) + 1)
            minutes = -(-wait // 60)
            message = f"Too many wrong passwords. Try again in {minutes} minute{'s' if minutes > 1 else ''}."
            raise Refusal(429, "too_many_attempts", message, retry_after=wait)
    row = SignInFailure.objects.create(account=account, address=address, at=now)
    return Attempt(row.pk, account, address)


def forgive(attempt: Attempt) -> None:
    """The password was right: this account starts afresh from this address."""
    SignInFailure.objects.filter(account=attempt.account, address=attempt.address).delete()


def sweep() -> int:
    """Remove what no longer counts; returns how many."""
    return SignInFailure.objects.filter(at__lte=timezone.now() - WINDOW).delete()[0]
