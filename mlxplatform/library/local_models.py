"""Which models are on this machine, read from headers only.

Looks in the data directory's ``models``, in the Hugging Face cache and in LM Studio's folders; reads config files and safetensors
headers, never a weight, and never imports mlx. A model is found by its id in the list of what was seen on
disk; no path is ever built from a name that somebody sent. What it says of a directory is remembered until
one of the directory's files changes.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mlxplatform import environment, paths
from mlxplatform.library import architectures, lmstudio, weight_files
from mlxplatform.library.publication import PROVENANCE, is_model_id

Kind = Literal["chat", "embedding", "transcription"]
Source = Literal["home", "hub", "lmstudio"]

STARTER = "smollm2-135m-instruct"
STARTER_EMBEDDING = "all-minilm-l6-v2"

#: model_type values that embed rather than speak.
_EMBEDDING_TYPES = {"bert", "roberta", "xlm-roberta", "modernbert", "nomic_bert", "mpnet", "distilbert"}
_TRANSCRIPTION_TYPES = {architectures.WHISPER}
#: What the name of an architecture may look like: it is shown, and compared with names of modules.
_ARCHITECTURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
#: Largest group or width, longest window in tokens, and largest size of anything else believed in a config.
_MAX_GROUP, _MAX_CONTEXT, _MAX_SIZE = 4096, 1_000_000_000, 100_000_000
#: Weights that only a model which sees has, and the files of its picture processor.
_EYES = re.compile(r"(^|\.)(vision|visual|vit|image)")
_EXPERTS = re.compile(r"\.(switch_mlp|switch_glu|experts)\.")
_IN_A_BLOCK = re.compile(r"(^|\.)layers\.\d+\.")
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}


@dataclass(frozen=True)
class LocalModel:
    """One model directory. ``bytes`` counts its weight files; ``parameters`` counts weights, unpacked.

    ``quantization`` is what config.json says (bits, group_size, mode, per-layer entries) or None.
    ``vision``: it has eyes beside its words, and what a processor must know to use them.
    ``revision`` changes when config, tokenizer, template or weights change. ``source`` is home, hub or lmstudio.
    ``obstacle`` says why it cannot be used as it lies there; empty when its files promise that it can.
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
    obstacle: str = ""
    config: dict[str, Any] = field(default_factory=dict, repr=False)
    provenance: dict[str, Any] = field(default_factory=dict, repr=False)
    vision: bool = False
    #: Of ``bytes``, those of a mixture's experts, of which a token reads a few.
    expert_bytes: int = 0

    def stated(self, name: str) -> int:
        """A size config.json states, such as hidden_size; 0 when it states none that could be true."""
        inner = self.config.get("text_config")
        value = (inner if isinstance(inner, dict) and inner else self.config).get(name)
        return value if type(value) is int and 0 < value <= _MAX_SIZE else 0


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
    others: list[tuple[Source, Iterator[tuple[str, Path]]]] = [("hub", hub_folders()), ("lmstudio", lmstudio.folders())]
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
    return by_id.get(starter) or next((model for model in models if not model.obstacle), None)


def default_chat(home: Path | None = None) -> LocalModel | None:
    return default_for("chat", home)


def default_embedding(home: Path | None = None) -> LocalModel | None:
    return default_for("embedding", home)


def read(model_id: str, folder: Path, source: Source = "home") -> LocalModel:
    """What one directory holds.

    Raises:
        UnreadableModel: no config, no weights, a broken header or an incomplete download.
    """
    config = weight_files.json_object(folder / "config.json")
    kind_of = config.get("model_type") if config else None
    if not config or not isinstance(kind_of, str) or not _ARCHITECTURE.fullmatch(kind_of):
        raise UnreadableModel("config.json is missing or names no model_type")
    weights = weight_files.of(folder)
    if not weights:
        raise UnreadableModel("there are no safetensors files")
    quantization = _quantization(config)
    digest = hashlib.sha256()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (folder / name).is_file():
            digest.update(name.encode() + hashlib.sha256((folder / name).read_bytes()).digest())
    parameters, size, eyes, experts = 0, 0, False, 0
    dtypes: dict[str, int] = {}
    for file in weights:
        try:
            header = weight_files.header(file)
        except weight_files.BrokenWeights as broken:
            raise UnreadableModel(str(broken)) from None
        size += header.bytes
        digest.update(header.raw + weight_files.samples(file))
        parameters += _count(header, quantization, dtypes)
        experts += sum(tensor.bytes for name, tensor in header.tensors.items() if _EXPERTS.search(name))
        eyes = eyes or any(_EYES.search(name) for name in header.tensors)
    kind = _kind(config, folder)
    sees = kind == "chat" and eyes and _is_told_to_look(config, folder) and architectures.knows_to_see(config)
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
        obstacle=architectures.obstacle(config, kind, folder, sees=sees) or _speechless(kind, folder),
        config=config,
        provenance=weight_files.json_object(folder / PROVENANCE) or {},
        vision=sees,
        expert_bytes=experts,
    )


def layers(model: LocalModel) -> list[str]:
    """Names of the linear layers inside its blocks, from its weights' headers; none where these are not in MLX's own format."""
    found: set[str] = set()
    for file in weight_files.of(model.path):
        header = weight_files.header(file)
        if header.format != "mlx":
            return []
        two = (name for name, tensor in header.tensors.items() if len(tensor.shape) == 2 and name.endswith(".weight"))
        found |= {name.removesuffix(".weight") for name in two if _IN_A_BLOCK.search(name)}
    return sorted(found)


def _speechless(kind: Kind, folder: Path) -> str:
    return "" if kind == "transcription" or (folder / "tokenizer.json").is_file() else "it has no tokenizer.json"


def _is_told_to_look(config: dict[str, Any], folder: Path) -> bool:
    """Conversions for text often keep the configuration of eyes they have dropped, or the other way round."""
    described = isinstance(config.get("vision_config"), dict)
    return described and any((folder / name).is_file() for name in _PROCESSORS)


def _home_folders(root: Path) -> Iterator[tuple[str, Path]]:
    for folder in _folders(root):
        if _has_config(folder):
            yield folder.name, folder
        else:
            for inner in _folders(folder):
                if _has_config(inner):
                    yield f"{folder.name}/{inner.name}", inner


def hub_folders() -> Iterator[tuple[str, Path]]:
    """The newest complete snapshot of each repository in the Hugging Face cache."""
    for repo in _folders(hub_cache()):
        kind, _, name = repo.name.partition("--")
        model_id = name.replace("--", "/", 1)
        if kind != "models" or not is_model_id(model_id):
            continue
        snapshots = sorted(_folders(repo / "snapshots"), key=_changed_at, reverse=True)
        complete = next((folder for folder in snapshots if _has_config(folder) and weight_files.of(folder)), None)
        if complete is not None:
            yield model_id, complete


def hub_cache() -> Path:
    """Where huggingface_hub keeps its snapshots, by its own environment variables."""
    if explicit := os.environ.get("HF_HUB_CACHE"):
        return Path(explicit).expanduser()
    return Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser() / "hub"


def _folders(root: Path) -> list[Path]:
    """Directories below one; none when it is missing, is a file, may not be read, or links to itself."""
    try:
        return sorted(p for p in root.iterdir() if not p.name.startswith(".") and p.is_dir())
    except OSError:
        return []


def _has_config(folder: Path) -> bool:
    try:
        return (folder / "config.json").is_file()
    except OSError:  # a directory that may not be entered
        return False


def _changed_at(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:  # it went away this instant
        return 0


def _remembered(model_id: str, folder: Path, source: Source) -> LocalModel | None:
    if not is_model_id(model_id):
        return None
    try:
        state = _state(folder)
    except OSError:
        return None
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
            except OSError:  # gone, or a link to itself
                continue
            entries.append((entry.name, status.st_size, status.st_mtime_ns, status.st_ino))
    return tuple(sorted(entries))


def _quantization(config: dict[str, Any]) -> dict[str, Any] | None:
    """What config.json says of packing, where it can be true.

    Raises:
        UnreadableModel: it says something that nothing could be packed by.
    """
    said = config.get("quantization")
    if not isinstance(said, dict):
        return None
    for entry in (said, *(value for value in said.values() if isinstance(value, dict))):
        for name in ("bits", "group_size"):
            if not (entry.get(name) is None or (type(entry[name]) is int and 0 < entry[name] <= _MAX_GROUP)):
                raise UnreadableModel(f"config.json names an impossible {name}")
    return said


def _count(header: weight_files.Header, quantization: dict[str, Any] | None, dtypes: dict[str, int]) -> int:
    """Weights in one file; packed ones are counted by their bits. ``dtypes`` collects bytes by dtype name."""
    total = 0
    for name, tensor in header.tensors.items():
        elements = tensor.elements
        if tensor.kind in _DTYPES:
            dtype = _DTYPES[tensor.kind]
            dtypes[dtype] = dtypes.get(dtype, 0) + elements * weight_files.BITS[tensor.kind] // 8
        if quantization and tensor.kind == "U32":
            own = quantization.get(name.removesuffix(".weight"))
            bits = (own if isinstance(own, dict) else quantization).get("bits")
            total += elements * 32 // bits if bits else elements
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
        limit = (weight_files.json_object(folder / "sentence_bert_config.json") or {}).get("max_seq_length", limit)
    return limit if type(limit) is int and 0 < limit <= _MAX_CONTEXT else 0


def _chat_template(folder: Path) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8", errors="replace")
    template = (weight_files.json_object(folder / "chat_template.json") or {}).get("chat_template")
    template = template or (weight_files.json_object(folder / "tokenizer_config.json") or {}).get("chat_template")
    if isinstance(template, list):  # several named ones: the default is what a plain chat uses
        named = {str(entry.get("name")): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default") or next(iter(named.values()), None)
    return template if isinstance(template, str) else None


def _capabilities(kind: Kind, template: str | None) -> tuple[str, ...]:
    if kind != "chat":
        return (kind,)
    return ("chat", "completion") if template else ("completion",)
