"""How long things are kept: what an administrator set, else what the environment says.

Read often and by every process, so it is remembered for some seconds; it deletes nothing itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError

from mlxplatform.inference.contract import Refusal
from mlxplatform.retention.models import Retention

NAMES = ("history_days", "history_mb", "job_log_days")
#: Seconds another process may go on with the older policy.
_REMEMBER = 5.0


@dataclass(frozen=True)
class Policy:
    history_days: int
    history_mb: int
    job_log_days: int


_known: tuple[float, Policy] | None = None


def current() -> Policy:
    global _known
    if _known is None or _known[0] < time.monotonic():
        _known = (time.monotonic() + _REMEMBER, _policy(Retention.objects.first()))
    return _known[1]


def _policy(row: Retention | None) -> Policy:
    chosen = {name: getattr(row, name, None) for name in NAMES}
    return Policy(**{name: getattr(settings.ENV, name) if value is None else value for name, value in chosen.items()})


def described() -> dict[str, dict[str, Any]]:
    """Each value with where it comes from."""
    row = Retention.objects.first()
    return {
        name: {
            "value": value,
            "default": getattr(settings.ENV, name),
            "set_by": "administrator" if getattr(row, name, None) is not None else "environment",
        }
        for name, value in asdict(_policy(row)).items()
    }


def change(values: Mapping[str, Any]) -> tuple[dict[str, int | None], dict[str, int | None]]:
    """Set what is named, None for the environment's value again; answers what was set before and after.

    Raises:
        Refusal: an unknown name, no whole number, out of bounds.
    """
    row = Retention.objects.first() or Retention()
    before = {name: getattr(row, name) for name in NAMES}
    for name, value in values.items():
        if name not in NAMES:
            raise Refusal(400, "unknown_field", f"the fields are {', '.join(NAMES)}", param=name[:60])
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise Refusal(400, "invalid_value", f"{name} must be a whole number, or null for the environment's value", param=name)
        setattr(row, name, value)
    try:
        row.clean_fields(exclude=["id"])
    except ValidationError as error:
        name, messages = next(iter(error.message_dict.items()))
        raise Refusal(400, "invalid_value", f"{name}: {messages[0]}", param=name) from None
    row.save()
    forget()
    return before, {name: getattr(row, name) for name in NAMES}


def forget() -> None:
    """Look again at the next question, after a change made here."""
    global _known
    _known = None
