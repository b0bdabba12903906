"""Which adapters are on this machine, read from headers only; found by id or by the name requests use.

A directory without a complete configuration, without weights, or with a truncated file is not an adapter and
is never listed, so it can never be loaded as one that does nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxplatform import environment, paths
from mlxplatform.library import local_models
from mlxplatform.library.publication import is_model_id

CONFIG, WEIGHTS = "adapter_config.json", "adapters.safetensors"
#: How names of fine-tuned models begin.
NAME_PREFIX = "ft:"


@dataclass(frozen=True)
class LocalAdapter:
    """One adapter directory. ``keys`` are the adapted layers inside a block; ``bytes`` those of its weights.

    ``project`` owns it; "" for one that was put here by hand, which every project may use.
    """

    id: str
    name: str
    path: Path
    base_model: str
    base_revision: str
    fine_tune_type: str
    rank: int
    scale: float
    keys: tuple[str, ...]
    bytes: int
    project: str = ""
    config: dict[str, Any] = field(default_factory=dict, repr=False)

    def usable_by(self, project: str) -> bool:
        return self.project in ("", project)


def scan(home: Path | None = None) -> list[LocalAdapter]:
    """Every whole adapter of the data directory, by id."""
    root = paths.adapters_dir(home or environment.read().home)
    found = []
    try:
        folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    except FileNotFoundError:
        return []
    for folder in folders:
        adapter = read(folder)
        if adapter is not None:
            found.append(adapter)
    return found


def find(adapter_id: object, home: Path | None = None) -> LocalAdapter | None:
    """The adapter with exactly this id; a path finds nothing."""
    if not is_model_id(adapter_id):
        return None
    return next((adapter for adapter in scan(home) if adapter.id == adapter_id), None)


def find_name(name: object, home: Path | None = None) -> LocalAdapter | None:
    """The adapter requests call ``ft:<base>:local:<suffix>:<id>``."""
    if not isinstance(name, str) or not name.startswith(NAME_PREFIX):
        return None
    return next((adapter for adapter in scan(home) if adapter.name == name), None)


_known: dict[Path, tuple[tuple[int, ...], LocalAdapter | None]] = {}


def read(folder: Path) -> LocalAdapter | None:
    """What a directory holds, or None when it is no whole adapter; remembered until its files change."""
    try:
        stats = [(folder / name).stat() for name in (CONFIG, WEIGHTS)]
    except OSError:
        return None
    state = tuple(number for stat in stats for number in (stat.st_mtime_ns, stat.st_size, stat.st_ino))
    known = _known.get(folder)
    if known is None or known[0] != state:
        known = _known[folder] = (state, _read(folder))
    return known[1]


def _read(folder: Path) -> LocalAdapter | None:
    try:
        config = json.loads((folder / CONFIG).read_text())
        parameters = config["lora_parameters"]
        local_models.check_weights(folder / WEIGHTS)
        return LocalAdapter(
            id=folder.name,
            name=str(config.get("name", "")),
            path=folder,
            base_model=str(config.get("base_model", "")),
            base_revision=str(config.get("base_revision", "")),
            fine_tune_type=config["fine_tune_type"],
            rank=int(parameters["rank"]),
            scale=float(parameters["scale"]),
            keys=tuple(parameters["keys"]),
            bytes=(folder / WEIGHTS).stat().st_size,
            project=str(config.get("project", "")),
            config=config,
        )
    except (OSError, ValueError, KeyError, TypeError, local_models.UnreadableModel):
        return None
