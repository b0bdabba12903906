"""Model directory → model in memory, without importing transformers when that can be avoided.

``import mlx_lm`` costs about a second, nearly all of it transformers and the hub's client, which the engine never uses:
it speaks token ids and reads folders. So a bare package object stands in for ``mlx_lm`` (its ``__init__`` imports the
command lines) and shallow ones for ``transformers`` and ``huggingface_hub``; mlx-lm's own ``load_model`` does the rest.
The version of mlx-lm is pinned, and tests/engine/test_loading.py compares this way with the ordinary one.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from workers.engine import platform

#: What mlx-lm mentions at import time: of transformers for annotations and isinstance checks, of the hub for downloads.
_STAND_INS = ("transformers", "transformers.tokenization_utils_base", "huggingface_hub")


class _Stand(type):
    """Classes that accept any call on themselves, such as ``AutoTokenizer.register(...)`` at import time."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


class _Shallow(types.ModuleType):
    """A module whose every public name is an empty class."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Stand(name, (), {})


def import_light_mlx_lm() -> None:
    """Import what the engine needs of mlx-lm, quickly. Does nothing when mlx_lm is already there.

    The stand-ins go again afterwards, so that whoever needs the real transformers later gets it.
    """
    if "mlx_lm" in sys.modules:
        return
    spec = importlib.util.find_spec("mlx_lm")
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError("mlx-lm is not installed")
    package = types.ModuleType("mlx_lm")
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__ = spec
    sys.modules["mlx_lm"] = package
    stand_ins = [name for name in _STAND_INS if name not in sys.modules]
    for name in stand_ins:
        sys.modules[name] = _Shallow(name)
    try:
        importlib.import_module("mlx_lm.generate")
        importlib.import_module("mlx_lm.utils")
    finally:
        for name in stand_ins:
            del sys.modules[name]


class CannotLoad(Exception):
    """The directory holds no model this engine can run; the message is fit for a client."""


class CannotServe(Exception):
    """The model is sound, and cannot be served the way the settings ask for; the message is fit for a client."""


@dataclass(frozen=True)
class Loaded:
    model: Any
    config: dict[str, Any]
    dtype: str
    weight_bytes: int


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model directory.

    Raises:
        CannotLoad: missing or not JSON.
    """
    try:
        config = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        raise CannotLoad("The model has no configuration file.") from None
    except ValueError:
        raise CannotLoad("The model's configuration file is not valid JSON.") from None
    if not isinstance(config, dict):
        raise CannotLoad("The model's configuration file is not a JSON object.")
    return config


def load(folder: Path, dtype: str, device: str) -> Loaded:
    """Load weights and bring them to the dtype this machine runs best.

    Raises:
        CannotLoad: with a reason; the original error is its cause.
    """
    import_light_mlx_lm()
    config = read_config(folder)
    from mlx_lm.utils import load_model

    with reading_files(config):
        model, config = load_model(folder)
    return as_this_machine_runs_it(model, config, dtype, device)


@contextmanager
def reading_files(config: dict[str, Any]) -> Iterator[None]:
    """What a library raises while it reads a model's files, as a reason for people.

    Raises:
        CannotLoad: the original error is its cause.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise CannotLoad("The model has no weight files.") from error
    except (ValueError, KeyError, TypeError, RuntimeError, ImportError, AttributeError) as error:
        raise CannotLoad(f"The model's files cannot be loaded ({config.get('model_type', 'unknown type')}).") from error


def as_this_machine_runs_it(model: Any, config: dict[str, Any], dtype: str, device: str) -> Loaded:
    """The model in the dtype that this machine runs best, or that was asked for."""
    from mlx.utils import tree_flatten

    wanted = platform.resident_dtype(dtype, device)
    model = platform.apply_dtype(model, wanted)
    arrays = [array for _, array in cast("list[tuple[str, Any]]", tree_flatten(model.parameters()))]
    effective = str(config.get("torch_dtype", "native")) if wanted == "native" else wanted
    if wanted == "native" and config.get("quantization"):
        effective = f"{config['quantization'].get('bits')}-bit"
    return Loaded(model, config, effective, sum(array.nbytes for array in arrays))
