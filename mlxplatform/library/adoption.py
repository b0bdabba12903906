"""Models that other programs on this machine keep: found by their headers, adopted without copying or by an import.

LM Studio's directories in MLX format are models of the library where they lie. GGUF files, LM Studio's and those
in Ollama's store, are listed with whether our importer reads them; adopting one is a job that writes a model of
its own. Nothing of theirs is ever changed, and only what this list shows can be adopted, by its name in it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction

from mlxplatform import paths
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import service
from mlxplatform.jobs.context import JobContext, JobFailed
from mlxplatform.jobs.models import Job
from mlxplatform.library import gguf_header, names, starters
from mlxplatform.library.lmstudio import roots as lmstudio_roots
from mlxplatform.library.publication import is_model_id, provenance

KIND = "adopt"
_MODEL_LAYER = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
#: Largest manifest read, bytes; real ones are below 2 KiB.
_MAX_MANIFEST = 1 << 20
#: Files and manifests looked at in one folder; nobody has more models.
_MOST = 2000
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Foreign:
    """One model of another program. ``path`` is ours alone and never shown."""

    source: str
    name: str
    bytes: int
    model: str
    architecture: str
    obstacle: str
    path: Path

    def describe(self) -> dict[str, Any]:
        shown = {"source": self.source, "name": self.name, "bytes": self.bytes, "model": self.model, "format": "gguf"}
        return shown | {"architecture": self.architecture, "supported": not self.obstacle, "reason": self.obstacle or None}


def found() -> list[Foreign]:
    """Every GGUF model of Ollama and LM Studio, by source and name."""
    return sorted([*_ollama(), *_lmstudio()], key=lambda item: (item.source, item.name))


def ollama_root() -> Path:
    """Where Ollama keeps models, by its own environment variable."""
    return Path(os.environ.get("OLLAMA_MODELS") or "~/.ollama/models").expanduser()


def submit(source: Any, name: Any, model: Any, *, project: str, created_by: str) -> Job:
    """Order the import of one of what was found.

    Raises:
        Refusal: 404 it is not there, 501 our importer does not read it, 409 the name is taken.
    """
    item = next((item for item in found() if (item.source, item.name) == (source, name)), None)
    if item is None:
        raise Refusal(404, "model_not_found", "There is no such model in Ollama's or LM Studio's folders.", param="name")
    if item.obstacle:
        raise Refusal(501, "unsupported_execution", f"{item.name} cannot be imported: {item.obstacle}.", param="name")
    target = item.model if model is None else model
    if not is_model_id(target):
        raise Refusal(400, "invalid_value", "model must be a model name: letters, digits, '.', '_' and '-'.", param="model")
    with transaction.atomic():
        names.check(target, "model")
        order = {"source": item.source, "name": item.name, "model": target}
        job = service.submit(KIND, order, project=project, created_by=created_by)
        if not job.ended_at:
            names.reserve(target, job.id, "model")
    return job


def run(ctx: JobContext) -> dict[str, Any]:
    """Import what was ordered; a second attempt finds what a first one published."""
    order = ctx.config
    models = paths.models_dir(settings.HOME)
    item = next((item for item in found() if (item.source, item.name) == (order["source"], order["name"])), None)
    if item is None:
        raise JobFailed("model_not_found", f"{order['name']} is not in {order['source']}'s folders any more.")

    def told(event: dict[str, Any]) -> None:
        ctx.check()
        if event.get("event") == "stage":
            ctx.stage(event["name"], event.get("progress"))

    origin = f"{item.source}: {item.name}"
    known = provenance(models / order["model"])
    if known and known.get("source") != origin:
        raise JobFailed("name_taken", f"There is a model called {order['model']} already; nothing was changed.")
    try:
        starters.import_gguf(item.path, models, order["model"], progress=told, source=origin)
    except starters.ImportFailed as failure:
        raise JobFailed("import_failed", str(failure)) from None
    ctx.artefact("model", id=order["model"])
    return {"model": order["model"], "source": item.source, "name": item.name}


def _ollama() -> Iterator[Foreign]:
    root = ollama_root()
    base = root / "manifests"
    for path in _files(base, "*"):
        parts = path.relative_to(base).parts
        if len(parts) < 3:
            continue
        _, *middle, tag = parts
        name = f"{'/'.join(middle).removeprefix('library/')}:{tag}"
        blob = _blob(path, root)
        if blob is not None:
            yield _described("ollama", name, blob)


def _blob(manifest: Path, root: Path) -> Path | None:
    """The weights a manifest names, if they are there. Only digests are followed, never paths."""
    try:
        if manifest.stat().st_size > _MAX_MANIFEST:
            return None
        layers = json.loads(manifest.read_bytes())["layers"]
        digest = next(layer["digest"] for layer in layers if layer.get("mediaType") == _MODEL_LAYER)
        match = _DIGEST.fullmatch(digest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError):
        return None
    path = root / "blobs" / f"sha256-{match[1]}" if match else None
    return path if path is not None and path.is_file() else None


def _lmstudio() -> Iterator[Foreign]:
    for root in lmstudio_roots():
        for path in _files(root, "*.gguf"):
            if not path.name.startswith("mmproj"):
                yield _described("lmstudio", path.relative_to(root).as_posix(), path)


def _described(source: str, name: str, path: Path) -> Foreign:
    stem = name.rsplit("/", 1)[-1].removesuffix(".gguf").replace(":", "-")
    architecture, obstacle, size = "", "", 0
    try:
        size = path.stat().st_size
        header = gguf_header.read(path)
        architecture, obstacle = header.architecture, header.obstacle()
    except gguf_header.NotGGUF as problem:
        obstacle = str(problem)
    except OSError:
        obstacle = "it cannot be read"
    return Foreign(source, name, size, _NOT_IN_IDS.sub("-", stem).strip("-.") or "model", architecture, obstacle, path)


def _files(root: Path, pattern: str) -> list[Path]:
    """Files below a folder, no deeper than these programs nest them, links out of it left aside."""
    kept: list[Path] = []
    try:
        home = root.resolve()
        for depth in range(1, 6):
            for path in root.glob("/".join(["*"] * (depth - 1) + [pattern])):
                if len(kept) >= _MOST:
                    return kept
                shown = str(path).isprintable()  # names that are no text, and those with line breaks, are nobody's models
                if shown and path.is_file() and not path.name.startswith(".") and path.resolve().is_relative_to(home):
                    kept.append(path)
    except OSError:
        return kept
    return sorted(kept)
