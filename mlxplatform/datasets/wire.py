"""Datasets, versions and rows as the API shows them. No paths of this machine."""

from __future__ import annotations

from typing import Any

from mlxplatform.datasets.models import Dataset, DatasetRow, DatasetVersion
from mlxplatform.datasets.rowsource import INDEX


def version_json(version: DatasetVersion, *, full: bool = False) -> dict[str, Any]:
    base = f"/api/datasets/{version.dataset_id}"
    shown = {
        "version": version.number,
        "state": version.state,
        "job_id": version.job or None,
        "parent": _parent(version),
        "output_format": version.output_format,
        "trainable": version.trainable,
        "counts": version.counts,
        "notes": version.notes,
        "error": version.error or None,
        "files": {
            name: {**info, "url": f"{base}/files/{name}?version={version.number}"}
            for name, info in version.files.items()
            if name != INDEX
        },
        "created_at": version.created_at.isoformat(),
        "ready_at": version.ready_at.isoformat() if version.ready_at else None,
    }
    if full:
        shown |= {"inputs": version.inputs, "options": version.options, "report": version.report}
    return shown


def _parent(version: DatasetVersion) -> dict[str, Any] | None:
    return {"dataset_id": version.parent.dataset_id, "version": version.parent.number} if version.parent else None


def dataset_json(dataset: Dataset, latest: DatasetVersion | None) -> dict[str, Any]:
    return {
        "id": dataset.id,
        "name": dataset.name,
        "template": dataset.template,
        "description": dataset.description,
        "tags": dataset.tags,
        "created_at": dataset.created_at.isoformat(),
        "archived": dataset.archived_at is not None,
        "latest": version_json(latest) if latest else None,
    }


def row_json(row: DatasetRow) -> dict[str, Any]:
    return {
        "ordinal": row.ordinal,
        "source": row.source,
        "state": row.state,
        "reason": row.reason or None,
        "detail": row.detail or None,
        "split": row.split or None,
        "chars": row.chars,
        "verdicts": row.verdicts,
        "content": row.content,
    }
