"""Writing the audit log: who did what to which object, before and after."""

from __future__ import annotations

from typing import Any

from mlxplatform.accounts.models import DEFAULT_PROJECT, AuditEntry


def record(
    actor: str,
    action: str,
    target: str,
    *,
    project: str = DEFAULT_PROJECT,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> AuditEntry:
    """Append one entry, in the caller's transaction.

    ``actor`` is "user:<name>", "key:<id>" or "local"; ``action`` is "<noun>.<verb>" such as "job.cancel".
    """
    return AuditEntry.objects.create(actor=actor, action=action, target=target, project=project, before=before, after=after)
