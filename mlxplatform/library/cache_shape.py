"""How a model's key-value cache grows, from its configuration alone: which layers remember everything, which only a window.

What counts is what mlx-lm does, not what a paper says: only the architectures named here keep short windows or latents;
any other is taken to keep whole keys and values in every layer, which is never too little. Layers without attention keep a
state of fixed size, which is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlxplatform.library.local_models import LocalModel

#: Architectures whose sliding layers keep a window, and every how many layers one keeps all where a config does not say.
_SLIDING = {
    **dict.fromkeys(("afmoe", "exaone4", "exaone_moe", "llama", "mellum", "ministral3", "mistral3", "olmo3"), 0),
    "gemma3": 6,
    "gemma3_text": 6,
    "cohere2": 4,
    "gpt_oss": 2,
}
#: Architectures that keep one compressed vector for all heads, and those that keep what it is unpacked to.
_LATENT = frozenset({"deepseek_v3", "deepseek_v32", "glm4_moe_lite", "kimi_k2", "kimi_linear", "longcat_flash", "mistral4"})
_UNPACKED = frozenset({"deepseek_v2", "minicpm3", "youtu_llm"})


@dataclass(frozen=True)
class CacheShape:
    """``width`` numbers per token in each layer; ``sliding`` of the layers keep the last ``window`` tokens."""

    width: int
    full: int
    sliding: int = 0
    window: int = 0

    def numbers(self, context: int) -> int:
        """What is kept after so many tokens."""
        return self.width * (self.full * context + self.sliding * min(context, self.window))

    def longest(self, numbers: int) -> int | None:
        """The longest context that this many hold; None: any."""
        if not self.width * (self.full + self.sliding):
            return None
        within = numbers // (self.width * (self.full + self.sliding))
        if within < self.window or not self.sliding:
            return within
        if not self.full:
            return None
        return max((numbers // self.width - self.sliding * self.window) // self.full, self.window)


def shape(model: LocalModel) -> CacheShape:
    """Empty when the configuration does not say."""
    width, layers, window = _width(model), model.stated("num_hidden_layers"), model.stated("sliding_window")
    kinds = _kinds(model, layers)
    attention = [kind for kind in kinds if kind.endswith("attention") and kind != "linear_attention"] if kinds else []
    if not kinds:
        return CacheShape(width, layers)
    if model.architecture not in _SLIDING or not window:
        return CacheShape(width, len(attention))
    short = attention.count("sliding_attention")
    return CacheShape(width, len(attention) - short, short, window)


def _kinds(model: LocalModel, layers: int) -> list[str]:
    """What each layer is; empty when all are alike."""
    said = _said(model, "layer_types")
    if isinstance(said, list) and len(said) == layers and all(isinstance(kind, str) for kind in said):
        return said
    pattern = model.stated("sliding_window_pattern") or _SLIDING.get(model.architecture, 0)
    if pattern < 2 or model.architecture not in _SLIDING:
        return []
    return ["full_attention" if (number + 1) % pattern == 0 else "sliding_attention" for number in range(layers)]


def _width(model: LocalModel) -> int:
    heads = model.stated("num_attention_heads")
    compressed, turned = model.stated("kv_lora_rank"), model.stated("qk_rope_head_dim")
    if compressed and model.architecture in _LATENT:
        return compressed + turned
    if compressed and model.architecture in _UNPACKED:
        return heads * (model.stated("qk_nope_head_dim") + turned + model.stated("v_head_dim"))
    own = model.stated("head_dim") or (model.stated("hidden_size") // heads if heads else 0)
    return 2 * (model.stated("num_key_value_heads") or heads) * own


def _said(model: LocalModel, name: str) -> Any:
    inner = model.config.get("text_config")
    return (inner if isinstance(inner, dict) and inner else model.config).get(name)
