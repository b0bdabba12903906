"""What every memory view asks of its request: whose it is, which vault, and numbers that are numbers."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from mlxplatform.accounts.identity import Identity
from mlxplatform.inference.contract import Refusal
from mlxplatform.memory.models import Vault
from mlxplatform.memory.orders import find_vault, invalid


def project_of(request: HttpRequest) -> str:
    return getattr(request, "project", "default")


def identity_of(request: HttpRequest) -> Identity | None:
    found: Identity | None = getattr(request, "identity", None)
    return found


def actor_of(request: HttpRequest) -> str:
    """Who asks, as the audit log names them."""
    identity = identity_of(request)
    return identity.actor if identity is not None else "local"


def vault_of(request: HttpRequest, name: Any = None) -> Vault:
    return find_vault(name if name is not None else request.GET.get("vault"), project_of(request))


def number(request: HttpRequest, name: str, default: int, most: int) -> int:
    raw = request.GET.get(name, "")
    if not raw:
        return default
    if not (raw.isascii() and raw.isdigit() and len(raw) <= 6 and 1 <= int(raw) <= most):
        raise invalid(name, f"{name} must be a whole number from 1 to {most}")
    return int(raw)


def needed(request: HttpRequest, name: str) -> str:
    value = request.GET.get(name, "").strip()
    if not value:
        raise Refusal(400, "missing_required_parameter", f"{name} is needed", param=name)
    return value
