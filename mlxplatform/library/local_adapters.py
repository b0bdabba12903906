"""Which adapters are on this machine, read from headers only; found by id or by the name requests use.

A directory without a complete configuration, without weights, or with a truncated file is not an adapter and
is never listed, so it can never be loaded as one that does nothing.

An adapter's directory may hold earlier checkpoints of the same run, each an adapter directory of its own, asked for
by the adapter's name with the step behind it. The step of the adapter itself is a second name of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlxplatform import environment, paths
from mlxplatform.library import weight_files
from mlxplatform.library.publication import is_model_id

CONFIG, WEIGHTS = "adapter_config.json", "adapters.safetensors"
#: How names of fine-tuned models begin.
NAME_PREFIX = "ft:"
#: Where checkpoints lie below their adapter, how their directories begin, and how their names go on.
CHECKPOINTS, _STEP, _NAMED_STEP = "checkpoints", "step-", ":ckpt-step-"
#: Kinds of fine-tunes an engine mounts beside others; one of another kind is asked for as a model, once it is fused.
SERVED = frozenset({"lora"})
#: Largest scale believed; NaN is not below it either.
_MAX_SCALE = 1e9


@dataclass(frozen=True)
class LocalAdapter:
    """One adapter directory. ``keys`` are the adapted layers inside a block; ``bytes`` those of its weights.

    ``project`` owns it; "" for one that was put here by hand, which every project may use. ``step`` is how far its
    run was, 0 when it does not say; ``parent`` is the id of the adapter whose earlier checkpoint this is.
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
    step: int = 0
    parent: str = ""
    config: dict[str, Any] = field(default_factory=dict, repr=False)

    def usable_by(self, project: str) -> bool:
        return self.project in ("", project)


def checkpoint_name(name: str, step: int) -> str:
    return f"{name}{_NAMED_STEP}{step}"


def checkpoint_id(adapter_id: str, step: int) -> str:
    return f"{adapter_id}-{_STEP}{step}"


def scan(home: Path | None = None) -> list[LocalAdapter]:
    """Every whole adapter of the data directory, by id; a run's earlier checkpoints behind its adapter."""
    root = paths.adapters_dir(home or environment.read().home)
    found = []
    try:
        folders = sorted(path for path in root.iterdir() if is_model_id(path.name) and path.is_dir())
    except FileNotFoundError:
        return []
    for folder in folders:
        adapter = read(folder)
        if adapter is not None:
            found += [adapter, *_checkpoints(adapter)]
    return found


def _checkpoints(adapter: LocalAdapter) -> list[LocalAdapter]:
    try:
        folders = [path for path in (adapter.path / CHECKPOINTS).iterdir() if path.name.startswith(_STEP)]
    except OSError:
        return []
    read_ones = [read(folder) for folder in folders]
    kept = [
        replace(one, id=checkpoint_id(adapter.id, one.step), name=checkpoint_name(adapter.name, one.step), parent=adapter.id)
        for one in read_ones
        if one is not None and one.step
    ]
    return sorted(kept, key=lambda one: one.step)


def names(home: Path | None = None) -> list[tuple[str, LocalAdapter]]:
    """Every name that requests may use, and what it stands for."""
    found = []
    for adapter in scan(home):
        if adapter.name:
            found.append((adapter.name, adapter))
            if adapter.step and not adapter.parent:
                found.append((checkpoint_name(adapter.name, adapter.step), adapter))
    return found


def find(adapter_id: object, home: Path | None = None) -> LocalAdapter | None:
    """The adapter with exactly this id; a path finds nothing."""
    if not is_model_id(adapter_id):
        return None
    return next((adapter for adapter in scan(home) if adapter.id == adapter_id), None)


def find_name(name: object, home: Path | None = None) -> LocalAdapter | None:
    """The adapter requests call ``ft:<base>:local:<suffix>:<id>``, with ``:ckpt-step-<N>`` behind it for one step of its run."""
    if not isinstance(name, str) or not name.startswith(NAME_PREFIX):
        return None
    return next((adapter for known, adapter in names(home) if known == name), None)


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
    """What its files say, when it says everything that mounting needs and nothing impossible."""
    config = weight_files.json_object(folder / CONFIG)
    parameters = config.get("lora_parameters") if config else None
    if config is None or not isinstance(parameters, dict):
        return None
    rank, scale, keys, kind = (
        parameters.get("rank"),
        parameters.get("scale"),
        parameters.get("keys"),
        config.get("fine_tune_type"),
    )
    if type(rank) is not int or rank < 1 or not isinstance(kind, str):
        return None
    if not isinstance(scale, int | float) or isinstance(scale, bool) or not abs(scale) <= _MAX_SCALE:
        return None
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        return None
    named = {name: config.get(name, "") for name in ("name", "base_model", "base_revision", "project")}
    if not all(isinstance(value, str) and value.isprintable() for value in named.values()):
        return None
    step = config.get("step")
    try:
        size = weight_files.header(folder / WEIGHTS).bytes
    except (OSError, weight_files.BrokenWeights):
        return None
    return LocalAdapter(
        id=folder.name,
        path=folder,
        fine_tune_type=kind,
        rank=rank,
        scale=float(scale),
        keys=tuple(keys),
        bytes=size,
        step=step if type(step) is int and step > 0 else 0,
        config=config,
        **named,
    )
