"""What fits: by how a model's cache grows and what a token reads, each worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlxplatform.library import fit
from mlxplatform.library.cache_shape import CacheShape, shape
from mlxplatform.library.local_models import LocalModel
from mlxplatform.library.machine import Machine

MAC = Machine("Apple M4", 16 << 30, 12 << 30, 120e9, True, True)
PLAIN = {"num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512}
#: Keys and values of one token in one plain layer.
WIDTH = 2 * 2 * 64


def model(architecture: str = "llama", *, size: int = 1 << 30, experts: int = 0, **config: Any) -> LocalModel:
    config = {**PLAIN, **config}
    kinds = {"kind": "chat", "chat_template": "", "capabilities": (), "revision": "", "quantization": None, "dtype": "bfloat16"}
    own = {"id": "m", "path": Path(), "architecture": architecture, "context": config.pop("context", 131072)}
    return LocalModel(**own, **kinds, bytes=size, parameters=size // 2, config=config, expert_bytes=experts)


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        (model(), CacheShape(WIDTH, 12)),
        (model(head_dim=128), CacheShape(2 * WIDTH, 12)),
        (model("gemma3_text", sliding_window=1024), CacheShape(WIDTH, 2, 10, 1024)),  # one of six sees everything
        (
            model("gemma3", text_config={**PLAIN, "sliding_window": 512, "sliding_window_pattern": 3}),
            CacheShape(WIDTH, 4, 8, 512),
        ),
        (
            model("gpt_oss", sliding_window=128, layer_types=["sliding_attention", "full_attention"] * 6),
            CacheShape(WIDTH, 6, 6, 128),
        ),
        (model("mistral", sliding_window=4096), CacheShape(WIDTH, 12)),  # mlx-lm keeps everything
        (model("qwen3", sliding_window=4096, layer_types=["sliding_attention"] * 12), CacheShape(WIDTH, 12)),
        (model("qwen3_next", layer_types=["linear_attention"] * 9 + ["full_attention"] * 3), CacheShape(WIDTH, 3)),
        (model("deepseek_v3", kv_lora_rank=512, qk_rope_head_dim=64), CacheShape(576, 12)),
        (
            model("deepseek_v2", kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128),
            CacheShape(8 * 320, 12),
        ),
        (model(layer_types="full_attention"), CacheShape(WIDTH, 12)),
        (model(num_attention_heads=0, num_key_value_heads=None, hidden_size=None), CacheShape(0, 12)),
    ],
    ids=lambda value: value.architecture if isinstance(value, LocalModel) else "",
)
def test_a_cache_grows_as_mlx_lm_lets_it(built: LocalModel, expected: CacheShape) -> None:
    assert shape(built) == expected


@given(
    st.builds(CacheShape, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(1, 200)),
    st.integers(0, 100_000),
)
@example(CacheShape(1, 0, 1, 1), 1)  # where only windows are kept, one that is full holds any context
def test_the_longest_context_is_the_last_that_is_held(kept: CacheShape, numbers: int) -> None:
    longest = kept.longest(numbers)

    if longest is None:
        assert kept.numbers(10**6) <= numbers or not kept.width or not kept.full
    else:
        assert kept.numbers(longest) <= numbers < kept.numbers(longest + 1)


def test_a_token_reads_only_the_experts_it_is_sent_to() -> None:
    """Nine tenths of the weights are experts, of which one in eight is read."""
    whole = model("qwen3_moe", size=10_000_000_000, context=8)
    mixture = model("qwen3_moe", size=10_000_000_000, context=8, experts=9_000_000_000, num_experts=64, num_experts_per_tok=8)

    assert fit.resident_bytes(mixture, metal=True) == fit.read_bytes(whole, metal=True) == 10_000_000_000
    assert fit.read_bytes(mixture, metal=True) == 1_000_000_000 + 9_000_000_000 // 8
    speeds = [fit.assess(one, MAC).predicted_decode_tps for one in (whole, mixture)]
    assert speeds == [8.4, pytest.approx(8.4 * 10 / 2.125, rel=0.01)]
    assert fit.assess(mixture, MAC).weights_bytes == 10_000_000_000


def test_a_sliding_window_leaves_room_for_a_long_context() -> None:
    whole, short = (
        model(context=1 << 20, size=11 << 30),
        model("gemma3_text", context=1 << 20, size=11 << 30, sliding_window=1024),
    )

    held = fit.assess(whole, MAC).max_safe_context, fit.assess(short, MAC).max_safe_context

    assert 5.5 * held[0] < held[1] < 6 * held[0]
