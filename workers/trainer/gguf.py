"""GGUF tensors and metadata → mlx-lm weights and config, for Llama-type files, and back.

llama.cpp stores the rows of Q and K with each head's rotary pairs interleaved; they are put back into the
half-split order, so that the result uses plain rope. This works on packed rows as well, because
quantization runs along the input axis. Files mix types (a tied 8-bit embedding beside 4-bit layers is
usual), hence per-layer entries in ``quantization``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import mlx.core as mx

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OURS = {ours: theirs for theirs, ours in _NAMES.items()}
#: mx.load unpacks GGUF's Q4_0, Q4_1 and Q8_0 blocks as affine groups of this size.
_GROUP = 32


class UnsupportedGGUF(ValueError):
    """The file cannot be imported; the message says what it holds that we do not read."""


def read(path: Path) -> tuple[dict[str, mx.array], dict[str, Any]]:
    """Tensors (lazy) and plain metadata of a file."""
    try:
        loaded: Any = mx.load(str(path), format="gguf", return_metadata=True)
    except (RuntimeError, ValueError) as error:
        raise UnsupportedGGUF("it is not a readable GGUF file") from error
    tensors, meta = loaded
    plain = {name: _plain(value) for name, value in meta.items()}
    if plain.get("general.architecture") != "llama":
        raise UnsupportedGGUF(f"its architecture is {plain.get('general.architecture')!r}, only llama is supported")
    if "rope_freqs.weight" in tensors:
        raise UnsupportedGGUF("it scales rope by a table, which is not supported")
    return tensors, plain


def config(meta: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    """config.json for mlx-lm, without dtype and quantization."""

    def of(name: str, default: Any = None) -> Any:
        value = meta.get(f"llama.{name}", default)
        if value is None:
            raise UnsupportedGGUF(f"its metadata lacks llama.{name}")
        return value

    heads = of("attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": of("embedding_length"),
        "num_hidden_layers": of("block_count"),
        "intermediate_size": of("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": of("attention.head_count_kv", heads),
        "head_dim": of("embedding_length") // heads,
        "rms_norm_eps": round(of("attention.layer_norm_rms_epsilon"), 10),
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "max_position_embeddings": of("context_length"),
        "rope_theta": of("rope.freq_base", 10000.0),
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
        **special_ids(meta),
    }


def special_ids(meta: dict[str, Any]) -> dict[str, int]:
    eos = meta["tokenizer.ggml.eos_token_id"]
    return {
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id", eos),
        "eos_token_id": eos,
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id", eos),
    }


def weights(tensors: dict[str, mx.array], meta: dict[str, Any], dtype: str) -> tuple[dict[str, mx.array], dict[str, Any] | None]:
    """mlx-lm's tensors and its ``quantization`` entry.

    ``dtype`` packed keeps packed weights bit for bit, with float16 scales as stored; any other name
    unpacks everything to that dtype.
    """
    heads = meta["llama.attention.head_count"]
    groups = meta.get("llama.attention.head_count_kv", heads)
    named: dict[str, mx.array] = {}
    for key, value in tensors.items():
        name = _rename(key)
        if ".self_attn.q_proj." in name:
            value = _half_split_rows(value, heads)
        elif ".self_attn.k_proj." in name:
            value = _half_split_rows(value, groups)
        named[name] = value
    packed = sorted(name.removesuffix(".scales") for name in named if name.endswith(".scales"))
    if dtype == "packed":
        keep = {name: v if v.dtype == mx.uint32 else v.astype(mx.float16) for name, v in named.items()}
        return _evaluated(keep), _quantization(named, packed)
    target = getattr(mx, dtype)
    for layer in packed:
        weight, scales, biases = (named.pop(f"{layer}.{part}") for part in ("weight", "scales", "biases"))
        named[f"{layer}.weight"] = mx.dequantize(
            weight,
            scales.astype(mx.float32),
            biases.astype(mx.float32),
            group_size=_GROUP,
            bits=weight.shape[1] // scales.shape[1],
        )
    return _evaluated({name: v.astype(target) for name, v in named.items()}), None


def _quantization(named: dict[str, mx.array], packed: list[str]) -> dict[str, Any] | None:
    if not packed:
        return None
    # 32 weights of b bits fill b 32-bit words, so words per group is the bit width.
    bits = {layer: named[f"{layer}.weight"].shape[1] // named[f"{layer}.scales"].shape[1] for layer in packed}
    widths = sorted(bits.values())
    common = max(widths, key=widths.count)
    entry: dict[str, Any] = {"group_size": _GROUP, "bits": common, "mode": "affine"}
    entry.update({layer: {"group_size": _GROUP, "bits": n} for layer, n in bits.items() if n != common})
    return entry


def _evaluated(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    tensors = {name: mx.contiguous(value) for name, value in tensors.items()}
    mx.eval(tensors)
    return tensors


def _rename(key: str) -> str:
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(\w+)", key)
    stem, leaf = (block[2], block[3]) if block else key.rsplit(".", 1)
    if stem not in _NAMES:
        raise UnsupportedGGUF(f"it holds a tensor {key!r} that is not known here")
    prefix = f"model.layers.{block[1]}." if block else ""
    return f"{prefix}{_NAMES[stem]}.{leaf}"


def interleaved(name: str, value: mx.array, config: dict[str, Any]) -> tuple[str, mx.array]:
    """GGUF's name and layout of one of mlx-lm's tensors.

    Raises:
        UnsupportedGGUF: the format has no name for it.
    """
    block = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(\w+)", name)
    stem, leaf = (block[2], block[3]) if block else name.rsplit(".", 1)
    if stem not in _OURS:
        raise UnsupportedGGUF(f"it holds a tensor {name} that Llama-type files do not have")
    if stem == "self_attn.q_proj":
        value = _interleaved_rows(value, config["num_attention_heads"])
    elif stem == "self_attn.k_proj":
        value = _interleaved_rows(value, config.get("num_key_value_heads") or config["num_attention_heads"])
    return f"{f'blk.{block[1]}.' if block else ''}{_OURS[stem]}.{leaf}", value


def _interleaved_rows(value: mx.array, heads: int) -> mx.array:
    rows, *rest = value.shape
    return value.reshape(heads, 2, rows // heads // 2, *rest).swapaxes(1, 2).reshape(rows, *rest)


def _half_split_rows(value: mx.array, heads: int) -> mx.array:
    rows, *rest = value.shape
    return value.reshape(heads, rows // heads // 2, 2, *rest).swapaxes(1, 2).reshape(rows, *rest)


def _plain(value: Any) -> Any:
    if isinstance(value, mx.array):
        return value.item() if value.ndim == 0 else value.tolist()
    return value
