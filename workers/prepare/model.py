"""A model directory as text preparation sees it: tokenizer, template, marks and limits. No weights, no mlx.

Reads ``tokenizer.json``, ``tokenizer_config.json``, ``config.json``, ``generation_config.json`` and
``chat_template.jinja`` where present. Python files and ``auto_map`` entries of a model are never looked at.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from mlxplatform.inference.contract import Refusal

#: Window assumed when a model states none (tokens).
UNSTATED_CONTEXT = 8192

#: Marks that end a turn. Where the template writes one, it ends the answer too, even if the model's
#: configuration forgot to list it (many converted models do).
TURN_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<|end|>",
    "<|eom_id|>",
    "<turn|>",
    "<|return|>",
    "<|call|>",
)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        raise Refusal(502, "model_load_failed", f"The model's {path.name} cannot be read.") from None
    return value if isinstance(value, dict) else {}


def _token_text(value: Any) -> str | None:
    """A special token of tokenizer_config.json: a string, or an object with ``content``."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, int) and not isinstance(item, bool)]


@dataclass(frozen=True)
class TextModel:
    """One loaded model directory. ``templates`` maps a name ("default", "tool_use") to a template source."""

    directory: Path
    tokenizer: Tokenizer
    config: dict[str, Any]
    generation_config: dict[str, Any]
    tokenizer_config: dict[str, Any]
    templates: dict[str, str] = field(default_factory=dict)

    @cached_property
    def special(self) -> dict[str, str]:
        """bos_token, eos_token, … as a template sees them."""
        names = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
        found = {name: _token_text(self.tokenizer_config.get(name)) for name in names}
        return {name: text for name, text in found.items() if text is not None}

    @cached_property
    def bos_id(self) -> int | None:
        text = self.special.get("bos_token")
        return self.tokenizer.token_to_id(text) if text else None

    @cached_property
    def vocab_size(self) -> int:
        """Rows of the output layer when the model states them, else the tokenizer's size."""
        stated = self._text_config.get("vocab_size")
        return stated if isinstance(stated, int) and stated > 0 else self.tokenizer.get_vocab_size()

    @cached_property
    def _text_config(self) -> dict[str, Any]:
        nested = self.config.get("text_config")
        return {**self.config, **nested} if isinstance(nested, dict) else self.config

    @cached_property
    def context(self) -> int:
        for key in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"):
            value = self._text_config.get(key)
            if isinstance(value, int) and value > 0:
                return value
        value = self.tokenizer_config.get("model_max_length")
        # Files that know no limit write 1e30.
        return value if isinstance(value, int) and 0 < value < 10**8 else UNSTATED_CONTEXT

    @cached_property
    def stop_ids(self) -> list[int]:
        """Every id that ends an answer, ascending."""
        found = set(_ids(self.generation_config.get("eos_token_id")))
        found.update(_ids(self._text_config.get("eos_token_id")))
        texts = [self.special.get("eos_token")]
        template = self.templates.get("default", "")
        texts += [mark for mark in TURN_ENDS if mark in template and not (mark == "<|end|>" and self.channels)]
        for text in texts:
            token = self.tokenizer.token_to_id(text) if text else None
            if token is not None:
                found.add(token)
        return sorted(found)

    @cached_property
    def channels(self) -> bool:
        """Whether answers are harmony messages (gpt-oss): ``<|end|>`` then ends a message, not the answer."""
        written = "<|channel|>" in "\n".join(self.templates.values())
        return written and self.tokenizer.token_to_id("<|channel|>") is not None

    @cached_property
    def added_tokens(self) -> dict[int, Any]:
        """Added tokens by id (objects with ``content`` and ``special``)."""
        return self.tokenizer.get_added_tokens_decoder()


def _templates(directory: Path, tokenizer_config: dict[str, Any]) -> dict[str, str]:
    """Template sources by name. A file beside the tokenizer wins over the configuration, as in transformers."""
    found: dict[str, str] = {}
    listed = tokenizer_config.get("chat_template")
    if isinstance(listed, str):
        found["default"] = listed
    elif isinstance(listed, list):
        for entry in listed:
            if isinstance(entry, dict) and isinstance(entry.get("template"), str):
                found[str(entry.get("name", "default"))] = entry["template"]
    legacy = _read_json(directory / "chat_template.json").get("chat_template")
    if isinstance(legacy, str):
        found["default"] = legacy
    for path in (directory / "chat_template.jinja", *sorted((directory / "additional_chat_templates").glob("*.jinja"))):
        if path.is_file():
            name = "default" if path.name == "chat_template.jinja" else path.stem
            found[name] = path.read_text(encoding="utf-8")
    return found


def load(directory: Path) -> TextModel:
    """Read one model directory.

    Raises:
        Refusal: 502 ``model_load_failed`` when it cannot serve text.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise Refusal(502, "model_load_failed", "The model has no tokenizer.json; it cannot be served.")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises bare Exception for any defect of the file
        raise Refusal(502, "model_load_failed", "The model's tokenizer.json cannot be read.") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer_config = _read_json(directory / "tokenizer_config.json")
    return TextModel(
        directory=directory,
        tokenizer=tokenizer,
        config=_read_json(directory / "config.json"),
        generation_config=_read_json(directory / "generation_config.json"),
        tokenizer_config=tokenizer_config,
        templates=_templates(directory, tokenizer_config),
    )
