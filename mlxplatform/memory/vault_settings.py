"""What an owner may set on a vault, checked the same way whether a program or a page sets it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.db import transaction

from mlxplatform.accounts import audit
from mlxplatform.accounts.identity import Identity
from mlxplatform.accounts.models import ApiKey
from mlxplatform.inference.contract import Refusal
from mlxplatform.memory.models import Vault
from mlxplatform.memory.orders import DEFAULT_VAULT, invalid, only

FIELDS: dict[str, type] = {
    "name": str,
    "policy": str,
    "hand_edits": str,
    "model": str,
    "min_chunks": int,
    "note_chars": int,
    "own_history": bool,
    "history_keys": list,
    "evaluation_blocks": bool,
}
#: Bounds of the vault's numbers: least, most.
BOUNDS = {"min_chunks": (1, 100), "note_chars": (500, 100_000)}
CHOICES = {"policy": dict(Vault.POLICIES), "hand_edits": dict(Vault.HAND_EDITS)}
#: Letters of a model's name that its column holds.
MODEL_LIMIT = 200


def check(body: dict[str, Any]) -> str:
    """The vault's name, when every field is known and in range.

    Raises:
        Refusal: naming the field and what is allowed.
    """
    only(body, FIELDS)
    for field, (least, most) in BOUNDS.items():
        if field in body and not least <= body[field] <= most:
            raise invalid(field, f"{field} must be from {least} to {most}")
    for field, allowed in CHOICES.items():
        if field in body and body[field] not in allowed:
            raise invalid(field, f"{field} must be one of {', '.join(allowed)}")
    if len(body.get("model", "")) > MODEL_LIMIT or "\0" in body.get("model", ""):
        raise invalid("model", f"model must be a name of at most {MODEL_LIMIT} characters")
    name: str = body.get("name", DEFAULT_VAULT)
    if not (1 <= len(name) <= 40 and name.isascii() and name.replace("-", "").replace("_", "").isalnum()):
        raise invalid("name", "name must have 1 to 40 letters, digits, - or _")
    return name


def change(vault: Vault, body: dict[str, Any], identity: Identity | None, by: str) -> None:
    """Set these fields, with a line in the audit log.

    Raises:
        Refusal: naming the field and what is allowed.
    """
    check({"name": vault.name, **body})
    if body.get("name", vault.name) != vault.name:
        raise invalid("name", "a vault keeps its name")
    if "history_keys" in body:
        body["history_keys"] = keys_to_read(identity, vault.project, body["history_keys"], vault.history_keys)
    before = {field: getattr(vault, field) for field in body}
    for field, value in body.items():
        setattr(vault, field, value)
    with transaction.atomic():
        vault.save()
        audit.record(by, "memory.settings", vault.name, project=vault.project, before=before, after=body)


def keys_to_read(identity: Identity | None, project: str, wanted: list[Any], present: Collection[str]) -> list[str]:
    """The keys whose history is read, once each. ``self`` is the asking key; only an administrator adds another one.

    Raises:
        Refusal: not a key of this project, or not the asker's to opt in.
    """
    own = identity.key_id if identity is not None else ""
    keys: list[str] = []
    for place, asked in enumerate(wanted):
        field = f"history_keys[{place}]"
        if not isinstance(asked, str) or not asked:
            raise invalid(field, 'history_keys must be ids of API keys, or "self"')
        key = own if asked == "self" else asked
        if not key:
            raise invalid(field, "this request was made without a key; set own_history instead")
        if key not in present and not ApiKey.objects.filter(pk=key, project=project).exists():
            raise invalid(field, "this project has no such key")
        if key not in (own, *present) and identity is not None and not identity.is_admin:
            raise Refusal(403, "not_your_key", "a key is opted in with itself, or by an administrator", param=field)
        keys.append(key)
    return list(dict.fromkeys(keys))
