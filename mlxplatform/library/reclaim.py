"""Disk that could be given back: old snapshots and partial downloads of the hub cache, and what killed writers left.

A plan is a list of items with ids. Carrying it out deletes what both the plan that was shown and the one of that moment
hold, each item looked at once more under its lock: what came into use meanwhile stays, and is told. Of a repository that is
being downloaded or waits to go on, of a model in memory and of a pinned one, nothing is ever in it.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from django.conf import settings

from mlxplatform import paths
from mlxplatform.inference.contract import Refusal
from mlxplatform.library import choices, downloads, hub, local_models, publication
from mlxplatform.library.local_models import hub_cache

Kind = Literal["old_snapshot", "partial_download", "unfinished"]


@dataclass(frozen=True)
class Item:
    """One thing that could go. ``path`` is ours alone and never shown; ``repo`` is the hub's name, where it is of the hub."""

    kind: Kind
    name: str
    bytes: int
    path: Path
    repo: str = ""

    @property
    def id(self) -> str:
        """The same as long as there is the same to delete."""
        said = f"{self.kind}\0{self.path}\0{self.bytes}"
        return hashlib.blake2b(said.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()

    def describe(self) -> dict[str, Any]:
        return {"id": self.id, "kind": self.kind, "name": self.name, "bytes": self.bytes}


@dataclass(frozen=True)
class Outcome:
    """What went, and the ids that were asked for and stay."""

    gone: list[Item]
    kept: list[str]

    def describe(self) -> dict[str, Any]:
        deleted = [item.describe() for item in self.gone]
        return {"deleted": deleted, "kept": self.kept, "bytes": sum(item.bytes for item in self.gone)}


def plan(resident: Collection[str]) -> list[Item]:
    """Everything nobody would miss: superseded snapshots, partial files, directories killed writers left."""
    spoken_for = {*resident, *choices.everything().pinned, *downloads.under_way()}
    newest = dict(local_models.hub_folders())
    found: list[Item] = []
    for repo in sorted(hub_cache().glob("models--*")):
        name = repo.name.removeprefix("models--").replace("--", "/", 1)
        if name in spoken_for or hub.is_pulling(name):
            continue
        if name in newest:
            found += _superseded(repo, name, newest[name])
        partials = sorted((repo / "blobs").glob("*.incomplete"))
        found += [Item("partial_download", name, _bytes(partial), partial, name) for partial in partials]
    for root in (paths.models_dir(settings.HOME), paths.adapters_dir(settings.HOME)):
        left = sorted(folder for folder in root.glob(f"{publication.PRIVATE_PREFIX}*") if publication.is_left(folder))
        found += [Item("unfinished", folder.name, _size(folder), folder) for folder in left]
    return found


def asked_for(body: dict[str, Any]) -> list[str] | None:
    """The ids a client names; None for whatever the plan of that moment holds.

    Raises:
        Refusal: not confirmed, or no list of ids.
    """
    if body.get("yes") is not True:
        raise Refusal(400, "confirmation_required", "Send yes: true to delete what the plan lists.", param="yes")
    items = body.get("items")
    if items is not None and not (isinstance(items, list) and all(isinstance(item, str) for item in items)):
        raise Refusal(400, "invalid_type", "items must be a list of ids of the plan.", param="items")
    return items


def execute(resident: Collection[str], shown: Collection[str] | None) -> Outcome:
    """Delete the items shown, as far as they can still go; with ``shown`` None, the plan of this moment."""
    gone = [item for item in plan(resident) if (shown is None or item.id in shown) and _delete(item)]
    done = {item.id for item in gone}
    return Outcome(gone, [wanted for wanted in dict.fromkeys(shown or ()) if wanted not in done])


def _delete(item: Item) -> bool:
    """Whether it is gone. What a download took meanwhile stays."""
    if item.kind == "unfinished":
        return publication.remove_left(item.path)
    try:
        with hub.alone_with(item.repo):
            if item.kind == "partial_download":
                item.path.unlink(missing_ok=True)
                return True
            own = _own_blobs(item.path.parents[1], item.path)
            shutil.rmtree(item.path, ignore_errors=True)
            if item.path.exists():
                return False
            for blob in own:
                blob.unlink(missing_ok=True)
            return True
    except (hub.HubError, OSError):
        return False


def _superseded(repo: Path, name: str, newest: Path) -> Iterator[Item]:
    """Other snapshots of a repository than its newest whole one. One that a branch or tag names is somebody's."""
    named = {_text(ref) for ref in (repo / "refs").rglob("*") if ref.is_file()}
    for snapshot in sorted((repo / "snapshots").glob("*")):
        if snapshot != newest and snapshot.name not in named:
            own = _own_blobs(repo, snapshot)
            yield Item("old_snapshot", f"{name}@{snapshot.name[:12]}", sum(map(_bytes, own)), snapshot, name)


def _text(ref: Path) -> str:
    try:
        return ref.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _own_blobs(repo: Path, snapshot: Path) -> list[Path]:
    """Blobs only this snapshot points at."""
    mine = _targets(repo, snapshot)
    for other in (repo / "snapshots").glob("*"):
        if other != snapshot:
            mine -= _targets(repo, other)
    return sorted(mine)


def _targets(repo: Path, snapshot: Path) -> set[Path]:
    """The repository's own blobs that it points at; a link that leads elsewhere is not followed."""
    blobs = (repo / "blobs").resolve()
    targets = (path.resolve() for path in snapshot.rglob("*") if path.is_symlink())
    return {target for target in targets if target.parent == blobs and target.is_file()}


def _size(folder: Path) -> int:
    return sum(_bytes(path) for path in folder.rglob("*") if path.is_file())


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # it went away this instant
        return 0
