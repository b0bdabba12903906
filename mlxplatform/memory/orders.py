"""Orders for memory work, checked the same way whoever places them: the API, a schedule, the admin."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from mlxplatform.accounts import audit
from mlxplatform.files.models import StoredFile
from mlxplatform.inference.contract import Refusal
from mlxplatform.inference.placement import looks_like_path, model_not_found
from mlxplatform.jobs import service
from mlxplatform.jobs.models import Job
from mlxplatform.memory.models import Vault

SYNTHESIS = "memory_synthesis"
IMPORT = "memory_import"

#: The stages a run may be limited to, in their order.
STAGES = ("segment", "extract", "route", "create", "place", "patch", "reconcile", "tighten", "link")
DEFAULT_VAULT = "wiki"
#: Most conversations or pages one order may name.
MOST_NAMED = 10_000


def invalid(field: str, message: str) -> Refusal:
    return Refusal(400, "invalid_value", message, param=field)


def only(body: dict[str, Any], allowed: dict[str, type], required: tuple[str, ...] = ()) -> dict[str, Any]:
    """The body if it has known fields of the right types and all that are needed.

    Raises:
        Refusal: naming the field.
    """
    spoken = {str: "a text", dict: "an object", int: "a whole number", bool: "true or false", list: "a list"}
    for name, value in body.items():
        if name not in allowed:
            raise Refusal(400, "unknown_field", f"the fields are {', '.join(allowed)}", param=name)
        wanted = allowed[name]
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            raise invalid(name, f"{name} must be {spoken[wanted]}")
    for name in required:
        if name not in body or body[name] in ("", []):
            raise Refusal(400, "missing_required_parameter", f"{name} is needed", param=name)
    return body


def find_vault(name: Any, project: str, field: str = "vault") -> Vault:
    """The project's vault of that name; its only or default one when none is named.

    Raises:
        Refusal: 400 not a name, 404 there is none.
    """
    vaults = Vault.objects.filter(project=project)
    if name is None or name == "":
        found = list(vaults[:2])
        vault = found[0] if len(found) == 1 else vaults.filter(name=DEFAULT_VAULT).first()
    elif isinstance(name, str):
        vault = vaults.filter(name__iexact=name).first()
    else:
        raise invalid(field, f"{field} must be the name of a vault")
    if vault is None:
        raise Refusal(404, "vault_not_found", "there is no such vault; make one with POST /api/memory/init", param=field)
    return vault


def check_synthesis(body: dict[str, Any], project: str) -> dict[str, Any]:
    """A synthesis order as the job's configuration.

    Raises:
        Refusal: naming the field and what is allowed.
    """
    allowed = ("vault", "stages", "conversations", "pages", "dry")
    for name in body:
        if name not in allowed:
            raise Refusal(400, "unknown_field", f"the fields are {', '.join(allowed)}", param=name)
    vault = find_vault(body.get("vault"), project)
    config: dict[str, Any] = {"vault": vault.name}
    for name in ("stages", "conversations", "pages"):
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, list) or len(value) > MOST_NAMED or not all(isinstance(item, str) and item for item in value):
            raise invalid(name, f"{name} must be a list of texts")
        if name == "stages" and (unknown := [item for item in value if item not in STAGES]):
            raise invalid(name, f"{unknown[0]} is no stage; the stages are {', '.join(STAGES)}")
        config[name] = value
    if vault.model and looks_like_path(vault.model):
        raise model_not_found(vault.model)
    return config


def synthesize(body: dict[str, Any], project: str, created_by: str, idempotency_key: str | None = None) -> Job:
    """Start a synthesis run."""
    config = check_synthesis(body, project)
    with transaction.atomic():
        job = service.submit(SYNTHESIS, config, project=project, created_by=created_by, idempotency_key=idempotency_key)
        audit.record(created_by, "memory.synthesize", job.id, project=project, after={"vault": config["vault"]})
    return job


def read_export(
    vault: Vault, format_: str, source: str, file: StoredFile, by: str, *, complete: bool = False, delete_file: bool = False
) -> Job:
    """Start reading an export from a stored file; ``delete_file`` removes it when it has been read."""
    config: dict[str, Any] = {"vault": vault.name, "format": format_, "source": source, "file": file.id, "name": file.filename}
    config |= {"complete": complete, "delete_file": delete_file}
    with transaction.atomic():
        job = service.submit(IMPORT, config, project=vault.project, created_by=by)
        audit.record(by, "memory.import", job.id, project=vault.project, after={"vault": vault.name, "source": source})
    return job
