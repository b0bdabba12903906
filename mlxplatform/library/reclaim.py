"""Disk that could be given back: old snapshots and partial downloads of the hub cache, and unused models of ours.

A plan is computed twice: once to be shown, once when it is carried out. What a host serves now is never in it.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings

from mlxplatform import paths
from mlxplatform.library import local_models, publication
from mlxplatform.library.local_models import hub_cache


@dataclass(frozen=True)
class Item:
    """One thing that could go. ``path`` is ours alone and never shown."""

    kind: str
    name: str
    bytes: int
    path: Path

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "bytes": self.bytes}


def plan() -> list[Item]:
    """Everything nobody would miss: superseded snapshots, partial files, directories killed writers left."""
    found = []
    models = local_models.scan(settings.HOME)
    used, ids = {model.path.resolve() for model in models}, {model.id for model in models}
    for repo in sorted(hub_cache().glob("models--*")):
        name = repo.name.removeprefix("models--").replace("--", "/", 1)
        for snapshot in sorted((repo / "snapshots").glob("*")):
            if snapshot.resolve() not in used and name in ids:
                own = _own_blobs(repo, snapshot)
                found.append(Item("old_snapshot", f"{name}@{snapshot.name[:12]}", sum(p.stat().st_size for p in own), snapshot))
        partials = sorted((repo / "blobs").glob("*.incomplete"))
        found += [Item("partial_download", name, partial.stat().st_size, partial) for partial in partials]
    for root in (paths.models_dir(settings.HOME), paths.adapters_dir(settings.HOME)):
        unfinished = sorted(root.glob(f"{publication.PRIVATE_PREFIX}*"))
        found += [Item("unfinished", folder.name, _size(folder), folder) for folder in unfinished]
    return found


def execute() -> list[Item]:
    """Carry out the plan of this moment; answers what went."""
    gone = []
    for item in plan():
        if item.kind == "unfinished":
            before = item.path.exists()
            publication.sweep(item.path.parent)
            if before and not item.path.exists():
                gone.append(item)
        elif item.kind == "partial_download":
            item.path.unlink(missing_ok=True)
            gone.append(item)
        else:
            repo = item.path.parents[1]
            own = _own_blobs(repo, item.path)
            shutil.rmtree(item.path, ignore_errors=True)
            for blob in own:
                blob.unlink(missing_ok=True)
            gone.append(item)
    return gone


def _own_blobs(repo: Path, snapshot: Path) -> list[Path]:
    """Blobs only this snapshot points at."""
    mine = _targets(snapshot)
    for other in (repo / "snapshots").glob("*"):
        if other != snapshot:
            mine -= _targets(other)
    return sorted(mine)


def _targets(snapshot: Path) -> set[Path]:
    return {path.resolve() for path in snapshot.rglob("*") if path.is_symlink() and path.resolve().is_file()}


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
