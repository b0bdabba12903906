"""Export of a model with its adapter fused in as one GGUF file of 16-bit weights, the inverse of our import.

mlx-lm's own writer is not used: it labels every tokenizer as SentencePiece, and a byte-level BPE written that
way reads as garbage elsewhere. What our reader would not read back to the same ids and weights is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from workers.trainer import gguf, gguf_tokenizer, report
from workers.trainer.report import Explained

#: GGUF's number for files whose matrices are float16.
_F16 = 1


def write(path: Path, model: nn.Module, source: Path, name: str) -> int:
    """Write ``model``, whose directory was ``source``; answers the number of tensors.

    Raises:
        Explained: 501's reason, when the format cannot hold this model.
    """
    config = json.loads((source / "config.json").read_text())
    flat: Any = tree_flatten(model.parameters())
    try:
        tensors = dict(gguf.interleaved(key, value, config) for key, value in flat)
        words = gguf_tokenizer.describe(source, int(tensors["token_embd.weight"].shape[0]))
    except ValueError as error:
        raise Explained("unsupported_execution", f"This model cannot be written as GGUF: {error}.") from error
    report.stage("write", 0.8, "Writing the file.")
    stored = {key: mx.contiguous(value.astype(mx.float16 if value.ndim == 2 else mx.float32)) for key, value in tensors.items()}
    mx.eval(stored)
    mx.save_gguf(str(path), stored, _metadata(config, source, name, words))
    return len(stored)


def _metadata(config: dict[str, Any], source: Path, name: str, words: dict[str, Any]) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    numbers = {
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.rope.dimension_count": config["hidden_size"] // heads,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": config.get("num_key_value_heads") or heads,
        "llama.vocab_size": len(words["tokenizer.ggml.tokens"]),
        "general.file_type": _F16,
        "general.quantization_version": 2,
    }
    reals = {
        "llama.attention.layer_norm_rms_epsilon": config.get("rms_norm_eps", 1e-5),
        "llama.rope.freq_base": config.get("rope_theta", 10000.0),
    }
    said: dict[str, Any] = {"general.architecture": "llama", "general.name": name}
    said |= {key: mx.array(value, dtype=mx.uint32) for key, value in numbers.items()}
    said |= {key: mx.array(value, dtype=mx.float32) for key, value in reals.items()}
    for key, value in words.items():
        if isinstance(value, bool):
            said[key] = mx.array(value)
        elif isinstance(value, list) and value and isinstance(value[0], int):
            said[key] = mx.array(value, dtype=mx.int32)
        else:
            said[key] = value
    return said | _special(source, words["tokenizer.ggml.tokens"], config)


def _special(source: Path, tokens: list[str], config: dict[str, Any]) -> dict[str, Any]:
    path = source / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    ids = {token: number for number, token in enumerate(tokens)}
    found: dict[str, Any] = {}
    for name, key in (("bos", "bos_token_id"), ("eos", "eos_token_id"), ("unknown", "unk_token_id"), ("padding", "pad_token_id")):
        text = settings.get(key.removesuffix("_id"))
        text = text.get("content") if isinstance(text, dict) else text
        number = ids.get(text, config.get(key)) if isinstance(text, str) else config.get(key)
        if isinstance(number, list):
            number = number[0]
        if isinstance(number, int):
            found[f"tokenizer.ggml.{name}_token_id"] = mx.array(number, dtype=mx.uint32)
    template = source / "chat_template.jinja"
    said = template.read_text(encoding="utf-8") if template.is_file() else settings.get("chat_template")
    if isinstance(said, str):
        found["tokenizer.chat_template"] = said
    found["tokenizer.ggml.add_bos_token"] = mx.array(bool(settings.get("add_bos_token", False)))
    return found
