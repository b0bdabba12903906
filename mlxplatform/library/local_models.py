"""Which models are on this machine, read from headers only.

Looks in the data directory's ``models``, in the Hugging Face cache and in LM Studio's folders; reads config files and safetensors
headers, never a weight, and never imports mlx. A model is found by its id in the list of what was seen on
disk; no path is ever built from a name that somebody sent. What it says of a directory is remembered until
one of the directory's files changes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mlxplatform import environment, paths
from mlxplatform.library import lmstudio
from mlxplatform.library.publication import PROVENANCE, is_model_id

Kind = Literal["chat", "embedding", "transcription"]
Source = Literal["home", "hub", "lmstudio"]

STARTER = "smollm2-135m-instruct"
STARTER_EMBEDDING = "all-minilm-l6-v2"

#: model_type values that embed rather than speak.
_EMBEDDING_TYPES = {"bert", "roberta", "xlm-roberta", "modernbert", "nomic_bert", "mpnet", "distilbert"}
_TRANSCRIPTION_TYPES = {"whisper"}
#: Longest safetensors header believed; real ones are below 20 MB.
_MAX_HEADER = 100 << 20
#: Bytes of weights sampled at the start, middle and end of each file for the revision.
_SAMPLE = 4096
_BITS = {"F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "BF16": 16, "F16": 16, "I16": 16, "U16": 16}
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}


@dataclass(frozen=True)
class LocalModel:
    """One model directory. ``bytes`` counts its weight files; ``parameters`` counts weights, unpacked.

    ``quantization`` is what config.json says (bits, group_size, mode, per-layer entries) or None.
    ``revision`` changes when config, tokenizer, template or weights change. ``source`` is home, hub or lmstudio.
    """

    id: str
    path: Path
    kind: Kind
    architecture: str
    context: int
    bytes: int
    parameters: int
    quantization: dict[str, Any] | None
    dtype: str
    chat_template: str | None
    capabilities: tuple[str, ...]
    revision: str
    source: Source = "home"
    config: dict[str, Any] = field(default_factory=dict, repr=False)
    provenance: dict[str, Any] = field(default_factory=dict, repr=False)


class UnreadableModel(Exception):
    """A directory that looks like a model and is none; the message says what is wrong, without a path."""


_known: dict[Path, tuple[tuple[Any, ...], LocalModel | None]] = {}
_found: dict[tuple[Path, str], LocalModel] = {}
_lock = threading.Lock()


def scan(home: Path | None = None) -> list[LocalModel]:
    """Every readable model, by id. A name in the data directory hides the same name in the hub cache, and that LM Studio's."""
    home = home or environment.read().home
    found: dict[str, LocalModel] = {}
    for model_id, folder in _home_folders(paths.models_dir(home)):
        model = _remembered(model_id, folder, "home")
        if model is not None:
            found[model_id] = model
    others: list[tuple[Source, Iterator[tuple[str, Path]]]] = [("hub", _hub_folders()), ("lmstudio", lmstudio.folders())]
    for source, folders in others:
        for model_id, folder in folders:
            if model_id not in found:
                model = _remembered(model_id, folder, source)
                if model is not None:
                    found[model_id] = model
    return [found[model_id] for model_id in sorted(found)]


def find(model_id: object, home: Path | None = None) -> LocalModel | None:
    """The model with exactly this id. Anything that is not a plain id finds nothing, whether it exists or not."""
    if not is_model_id(model_id):
        return None
    home = home or environment.read().home
    known = _found.get((home, str(model_id)))
    if known is not None and _unchanged(known):  # a request asks for its model each time: one folder, not all of them
        return known
    model = next((model for model in scan(home) if model.id == model_id), None)
    if model is not None and model.source == "home":  # in the hub cache a newer snapshot may stand beside it
        _found[home, model.id] = model
    return model


def _unchanged(model: LocalModel) -> bool:
    with _lock:
        known = _known.get(model.path)
    try:
        return known is not None and known[1] is model and known[0] == _state(model.path)
    except OSError:
        return False


def default_for(kind: Kind, home: Path | None = None, *, configured: str | None = None) -> LocalModel | None:
    """The current model of a kind: the configured one, else the starter, else the first by name."""
    models = [model for model in scan(home) if model.kind == kind]
    by_id = {model.id: model for model in models}
    if kind == "chat":
        wanted = environment.read().model if configured is None else configured
        if wanted:
            return by_id.get(wanted)
    starter = STARTER_EMBEDDING if kind == "embedding" else STARTER
    return by_id.get(starter) or next(iter(models), None)


def default_chat(home: Path | None = None) -> LocalModel | None:
    return default_for("chat", home)


def default_embedding(home: Path | None = None) -> LocalModel | None:
    return default_for("embedding", home)


def read(model_id: str, folder: Path, source: Source = "home") -> LocalModel:
    """What one directory holds.

    Raises:
        UnreadableModel: no config, no weights, a broken header or an incomplete download.
    """
    config = _json(folder / "config.json")
    if not config or not isinstance(config.get("model_type"), str):
        raise UnreadableModel("config.json is missing or names no model_type")
    weights = _weight_files(folder)
    if not weights:
        raise UnreadableModel("there are no safetensors files")
    quantization = config.get("quantization")
    quantization = quantization if isinstance(quantization, dict) else None
    digest = hashlib.sha256()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (folder / name).is_file():
            digest.update(name.encode() + hashlib.sha256((folder / name).read_bytes()).digest())
    parameters, size = 0, 0
    dtypes: dict[str, int] = {}
    for file in weights:
        header, raw = _header(file)
        size += file.stat().st_size
        digest.update(raw + _samples(file))
        parameters += _count(header, quantization, dtypes)
    kind = _kind(config, folder)
    template = _chat_template(folder) if kind == "chat" else None
    return LocalModel(
        id=model_id,
        path=folder,
        kind=kind,
        architecture=config["model_type"],
        context=_context(config, folder, kind),
        bytes=size,
        parameters=parameters,
        quantization=quantization,
        dtype=max(dtypes, key=lambda name: dtypes[name], default="unknown"),
        chat_template=template,
        capabilities=_capabilities(kind, template),
        revision=digest.hexdigest()[:16],
        source=source,
        config=config,
        provenance=_json(folder / PROVENANCE) or {},
    )


def check_weights(path: Path) -> None:
    """
    Raises:
        UnreadableModel: not a whole safetensors file.
        OSError: not readable.
    """
    _header(path)


def _home_folders(root: Path) -> Iterator[tuple[str, Path]]:
    for folder in _folders(root):
        if (folder / "config.json").is_file():
            yield folder.name, folder
        else:
            for inner in _folders(folder):
                if (inner / "config.json").is_file():
                    yield f"{folder.name}/{inner.name}", inner


def _hub_folders() -> Iterator[tuple[str, Path]]:
    """The newest complete snapshot of each repository in the Hugging Face cache."""
    for repo in _folders(hub_cache()):
        kind, _, name = repo.name.partition("--")
        model_id = name.replace("--", "/", 1)
        if kind != "models" or not is_model_id(model_id):
            continue
        snapshots = sorted(_folders(repo / "snapshots"), key=lambda p: p.stat().st_mtime_ns, reverse=True)
        complete = next((folder for folder in snapshots if (folder / "config.json").is_file() and _weight_files(folder)), None)
        if complete is not None:
            yield model_id, complete


def hub_cache() -> Path:
    """Where huggingface_hub keeps its snapshots, by its own environment variables."""
    if explicit := os.environ.get("HF_HUB_CACHE"):
        return Path(explicit).expanduser()
    return Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser() / "hub"


def _folders(root: Path) -> list[Path]:
    try:
        return sorted(p for p in root.iterdir() if not p.name.startswith(".") and p.is_dir())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _remembered(model_id: str, folder: Path, source: Source) -> LocalModel | None:
    if not is_model_id(model_id):
        return None
    state = _state(folder)
    with _lock:
        known = _known.get(folder)
    if known is not None and known[0] == state:
        return known[1]
    try:
        model: LocalModel | None = read(model_id, folder, source)
    except (UnreadableModel, OSError):
        model = None
    with _lock:
        _known[folder] = (state, model)
    return model


def _state(folder: Path) -> tuple[Any, ...]:
    """Changes whenever a file of the directory does; one stat per file."""
    entries = []
    with os.scandir(folder) as listing:
        for entry in listing:
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue
            entries.append((entry.name, status.st_size, status.st_mtime_ns, status.st_ino))
    return tuple(sorted(entries))


def _json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _weight_files(folder: Path) -> list[Path]:
    """The weight files, or none when the index names one that is not there."""
    index = _json(folder / "model.safetensors.index.json")
    if index and isinstance(index.get("weight_map"), dict):
        names = sorted({str(name) for name in index["weight_map"].values()})
        files = [folder / Path(name).name for name in names]
        return files if all(file.is_file() for file in files) else []
    return sorted(file for file in folder.glob("*.safetensors") if not file.name.startswith("adapter") and file.is_file())


def _header(path: Path) -> tuple[dict[str, Any], bytes]:
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= _MAX_HEADER:
            raise UnreadableModel("a weight file has no valid header")
        raw = file.read(length)
    try:
        header = json.loads(raw)
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        raise UnreadableModel("a weight file has no valid header") from None
    if path.stat().st_size != 8 + length + end:
        raise UnreadableModel("a weight file is truncated")
    return header, raw


def _samples(path: Path) -> bytes:
    size = path.stat().st_size
    with path.open("rb") as file:
        pieces = []
        for start in (0, size // 2, max(0, size - _SAMPLE)):
            file.seek(start)
            pieces.append(file.read(_SAMPLE))
    return hashlib.sha256(b"".join(pieces)).digest()


def _count(header: dict[str, Any], quantization: dict[str, Any] | None, dtypes: dict[str, int]) -> int:
    """Weights in one file; packed ones are counted by their bits. ``dtypes`` collects bytes by dtype name."""
    total = 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        elements, stored = math.prod(entry["shape"]), entry["dtype"]
        if stored in _DTYPES:
            dtypes[_DTYPES[stored]] = dtypes.get(_DTYPES[stored], 0) + elements * _BITS[stored] // 8
        if quantization and stored == "U32":
            own = quantization.get(name.removesuffix(".weight"))
            bits = (own if isinstance(own, dict) else quantization).get("bits")
            total += elements * 32 // bits if isinstance(bits, int) and bits > 0 else elements
        elif not (quantization and name.endswith((".scales", ".biases"))):
            total += elements
    return total


def _kind(config: dict[str, Any], folder: Path) -> Kind:
    if config["model_type"] in _TRANSCRIPTION_TYPES:
        return "transcription"
    if config["model_type"] in _EMBEDDING_TYPES or (folder / "modules.json").is_file():
        return "embedding"
    return "chat"


def _context(config: dict[str, Any], folder: Path, kind: Kind) -> int:
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    limit = (text or config).get("max_position_embeddings")
    if kind == "embedding":
        limit = (_json(folder / "sentence_bert_config.json") or {}).get("max_seq_length", limit)
    return limit if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0 else 0


def _chat_template(folder: Path) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8", errors="replace")
    template = (_json(folder / "tokenizer_config.json") or {}).get("chat_template")
    if isinstance(template, list):  # several named ones: the default is what a plain chat uses
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default") or next(iter(named.values()), None)
    return template if isinstance(template, str) else None


def _capabilities(kind: Kind, template: str | None) -> tuple[str, ...]:
    if kind != "chat":
        return (kind,)
    return ("chat", "completion") if template else ("completion",)
