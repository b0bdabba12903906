"""Reading and writing model directories for trainer tasks: weights, config, and the files beside them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_map_with_path

from workers.engine.loading import import_light_mlx_lm
from workers.trainer.report import Explained

#: Files a model directory needs besides weights and config.json; code and other formats are left behind.
BESIDE = (
    "tokenizer*",
    "*.jinja",
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.model",
    "preprocessor_config.json",
    "README.md",
    "LICENSE*",
)


def load(folder: Path, *, dense: bool = False, dtype: str | None = None) -> tuple[nn.Module, dict[str, Any]]:
    """A model with lazy weights and its config. ``dense`` unpacks quantized layers, ``dtype`` casts the rest.

    Raises:
        Explained: the architecture is unknown or the files do not fit it.
    """
    import_light_mlx_lm()
    from mlx_lm.utils import dequantize_model, load_model

    try:
        model, config = load_model(folder, lazy=True)
    except (ValueError, KeyError, TypeError, RuntimeError, FileNotFoundError) as error:
        kind = _model_type(folder)
        raise Explained("model_load_failed", f"The model's files cannot be loaded (architecture {kind!r}).") from error
    if dense and config.get("quantization"):
        model = dequantize_model(model)
        config.pop("quantization", None)
        config.pop("quantization_config", None)
    if dtype is not None:
        cast(model, dtype)
    return model, config


def text_ids(folder: Path, text: str) -> list[int]:
    """A text as the model's own tokenizer cuts it, without special tokens.

    Raises:
        Explained: the tokenizer cannot be read.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises nothing more specific
        raise Explained("no_tokenizer", "The model's tokenizer.json is missing or cannot be read.") from error
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def window(folder: Path, most: int) -> int:
    """Tokens a text may have to be read at once: ``most``, or the model's own window where that is less.

    Raises:
        Explained: after so few tokens there is no next one to foretell.
    """
    config = json.loads((folder / "config.json").read_text())
    stated = config.get("max_position_embeddings")
    found = min(most, stated) if type(stated) is int and stated > 0 else most
    if found < 2:
        raise Explained("window_too_short", "The model's window is a single token: there is nothing to measure it by.")
    return found


def require_numbers(model: nn.Module) -> None:
    """
    Raises:
        Explained: a weight, or what packed ones are scaled by, is NaN or infinite.
    """
    flat: Any = tree_flatten(model.parameters())
    for name, value in flat:
        if mx.issubdtype(value.dtype, mx.floating) and not mx.isfinite(value).all().item():
            raise Explained("not_finite", f"{name} holds NaN or infinity; nothing was published.")


def cast(model: nn.Module, dtype: str) -> None:
    """Bring floating-point parameters to a dtype, except those the architecture keeps as they are."""
    target = getattr(mx, dtype)
    castable = getattr(model, "cast_predicate", lambda _: True)

    def one(name: str, value: mx.array) -> mx.array:
        return value.astype(target) if castable(name) and mx.issubdtype(value.dtype, mx.floating) else value

    model.update(tree_map_with_path(one, model.parameters()))


def save(folder: Path, source: Path, model: nn.Module, config: dict[str, Any]) -> None:
    """Write weights, config and the files beside them; the model's weights are given up on the way.

    Raises:
        Explained: the original was deleted meanwhile, which is seen by the files beside its weights alone.
    """
    from mlx_lm.utils import save_model

    save_model(folder, model, donate_model=True)
    ordered = {name: config[name] for name in sorted(config) if name != "_name_or_path"}
    (folder / "config.json").write_text(json.dumps(ordered, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for pattern in BESIDE:
        for file in source.glob(pattern):
            if file.is_file():
                shutil.copyfile(file, folder / file.name)  # follows the links of a hub cache
    if not (folder / "tokenizer.json").is_file():
        raise Explained("model_not_found", "The files of the original went away meanwhile; nothing was published.")


def tensor_bytes(model: nn.Module) -> int:
    flat: Any = tree_flatten(model.parameters())
    return sum(value.nbytes for _, value in flat)


def weight_count(model: nn.Module) -> int:
    """Weights of the model, packed ones counted as what they stand for."""
    total = 0
    for module in model.modules():
        own = [(name, value) for name, value in module.items() if isinstance(value, mx.array)]
        packed = "scales" in module
        for name, value in own:
            if packed and name in {"scales", "biases"}:
                continue
            total += value.size * 32 // module.bits if packed and name == "weight" else value.size
    return total


def _model_type(folder: Path) -> str:
    try:
        return str(json.loads((folder / "config.json").read_text()).get("model_type"))
    except (OSError, ValueError):
        return "unknown"
