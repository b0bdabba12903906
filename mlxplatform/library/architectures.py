"""What this installation can run, told from a model's configuration and the files of the libraries that would run it.

Imports none of these libraries: an architecture is a module of theirs by its name, after the renaming that the library
does, and both are read as text. Where a library is not installed, as on a machine that only serves pages, nothing is
claimed against a model that would need it. Knows no weights: what it lets pass may still fail to load.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

#: Encoders of ours (workers.engine.encoder has the same set) and speech models of mlx-whisper.
ENCODERS = frozenset({"bert"})
WHISPER = "whisper"
#: Foreign packings that mlx-lm turns into its own. What ``quantization`` describes is MLX's and needs none of them.
PACKINGS = frozenset({"awq", "gptq", "bitnet", "compressed-tensors", "fp8", "modelopt", "mxfp4", "mxfp8"})


def obstacle(config: Mapping[str, Any], kind: str, folder: Path, *, sees: bool) -> str:
    """Why a model of this kind cannot be run here; empty when nothing is known against it."""
    if config.get("model_file"):
        return "it brings its own code, which is not run here"
    architecture = str(config["model_type"])
    if kind == "transcription":
        return _speech_obstacle(folder)
    if architecture in ENCODERS:
        return ""
    if not _has("mlx_lm", architecture, config) and not (sees and knows_to_see(config)):
        return f"its architecture {architecture} is not known here"
    if not any(folder.glob("model*.safetensors")):
        return "its weight files are not named model….safetensors"
    return _packing_obstacle(config)


def knows_to_see(config: Mapping[str, Any]) -> bool:
    """Whether mlx-vlm has this architecture, or is not here to be asked."""
    return _has("mlx_vlm", str(config["model_type"]), config)


def _speech_obstacle(folder: Path) -> str:
    if not (folder / "weights.safetensors").is_file():
        return "its weights are not in the layout of mlx-whisper: weights.safetensors is missing"
    return ""


def _packing_obstacle(config: Mapping[str, Any]) -> str:
    said = config.get("quantization_config")
    method = said.get("quant_method") if isinstance(said, dict) and not config.get("quantization") else None
    if method is None or (isinstance(method, str) and method in PACKINGS):
        return ""
    return f"its weights are packed by {str(method)[:40]}, which is not read here"


def _has(library: str, architecture: str, config: Mapping[str, Any]) -> bool:
    """Whether a library has a module of models by that name; also where nobody can tell."""
    folder = _folder(library)
    if folder is None:
        return True
    renamed = _renamed(library)
    named = config.get("architectures")
    classes = named if isinstance(named, list) else [named]
    by_class = (_by_class(library).get((architecture, one)) for one in classes if isinstance(one, str))
    name = next(filter(None, by_class), renamed.get(architecture, architecture))
    models = folder / "models"
    return _is_model(models / f"{name}.py") or (models / name / "__init__.py").is_file()


@cache
def _is_model(module: Path) -> bool:
    """Beside the models lie modules that they share."""
    try:
        tree = ast.parse(module.read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return False
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef) and statement.name == "Model":
            return True
        if isinstance(statement, ast.ImportFrom) and any((item.asname or item.name) == "Model" for item in statement.names):
            return True
    return False


@cache
def _folder(library: str) -> Path | None:
    spec = importlib.util.find_spec(library)
    places = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(places))) if places else None


def _renamed(library: str) -> dict[str, str]:
    """Architectures that the library runs with another's module."""
    return _table(library, "MODEL_REMAPPING")


def _by_class(library: str) -> dict[tuple[str, str], str]:
    """The same for some classes of an architecture."""
    return _table(library, "MODEL_ARCHITECTURE_REMAPPING")


@cache
def _table(library: str, name: str) -> dict[Any, str]:
    """A table of literals at the top of the library's loader, read without running it."""
    folder = _folder(library)
    try:
        tree = ast.parse((folder / "utils.py").read_text(encoding="utf-8")) if folder else None
    except (OSError, SyntaxError):
        return {}
    for statement in tree.body if tree else []:
        if isinstance(statement, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in statement.targets):
            try:
                found = ast.literal_eval(statement.value)
            except ValueError:
                return {}
            return found if isinstance(found, dict) else {}
    return {}
