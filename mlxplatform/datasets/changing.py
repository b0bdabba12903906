"""What may be changed about a dataset: its name, description and tags, and whether it is put away. Rows never change."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.utils import timezone

from mlxplatform.accounts import audit
from mlxplatform.datasets import submit
from mlxplatform.datasets.inputs import bad, refuse_nul
from mlxplatform.datasets.models import Dataset
from mlxplatform.inference.contract import Refusal

FIELDS = ("name", "description", "tags", "archived")
MAX_NAME, MAX_DESCRIPTION = 200, 10_000


def change(dataset: Dataset, body: dict[str, Any], actor: str) -> None:
    """Raises Refusal naming the field; then nothing is changed."""
    for field in body:
        if field not in FIELDS:
            raise Refusal(400, "unknown_field", f"{field} cannot be changed; {', '.join(FIELDS)} can", param=field)
    refuse_nul(body)
    before = {name: getattr(dataset, name) for name in ("name", "description", "tags")} | {"archived": bool(dataset.archived_at)}
    if "name" in body:
        dataset.name = _named(body["name"])
    if "description" in body:
        if not isinstance(body["description"], str) or len(body["description"]) > MAX_DESCRIPTION:
            raise bad("description", f"description must be text of at most {MAX_DESCRIPTION} characters")
        dataset.description = body["description"]
    if "tags" in body:
        dataset.tags = submit.parse_tags(body["tags"])
    if "archived" in body:
        if not isinstance(body["archived"], bool):
            raise bad("archived", "archived must be true or false")
        dataset.archived_at = (dataset.archived_at or timezone.now()) if body["archived"] else None
    with transaction.atomic():
        # Only what was asked for: somebody may change the rest at the same time.
        dataset.save(update_fields=[{"archived": "archived_at"}.get(field, field) for field in body])
        audit.record(actor, "dataset.change", dataset.id, project=dataset.project, before=before, after=body)


def _named(raw: Any) -> str:
    if not isinstance(raw, str) or not raw.strip() or len(raw) > MAX_NAME:
        raise bad("name", f"name must be text of 1 to {MAX_NAME} characters")
    return raw.strip()
