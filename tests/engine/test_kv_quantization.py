"""Quantized KV caches: one sequence at a time, the same tokens as mlx-lm's own, everything around them as ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mlxplatform.inference.contract import Failed
from tests.engine.conftest import Driver, Host
from tests.engine.test_core import prompts
from tests.fixtures import tiny_model
from workers.engine import loading, solo
from workers.engine.choosing import RowChooser
from workers.engine.core import Core, Limits
from workers.engine.prefix_cache import PrefixCache
from workers.engine.resident import kv_bytes_per_token

MIB = 1024 * 1024


@pytest.fixture(scope="session")
def wide() -> loading.Loaded:
    """A tiny model whose attention heads have 32 values, so that they can be quantized."""
    return loading.load(tiny_model.directory(hidden=128), "float32", "cpu")


@pytest.fixture
def drive(wide: loading.Loaded) -> Callable[..., Driver]:
    def make(bits: int = 8, prefix: Any = None) -> Driver:
        chooser = RowChooser(int(wide.config["vocab_size"]))
        maker = solo.cache_maker(wide.model, bits, 32)
        core = Core(
            wide.model,
            chooser,
            Limits(slots=1),
            prefix=prefix,
            make_batch=lambda: solo.Solo(wide.model, chooser, maker, prefill_tokens=16),
        )
        return Driver(core)

    return make


def by_hand(model: Any, prompt: list[int], tokens: int, bits: int) -> list[int]:
    """Greedy decoding on mlx-lm's quantized caches, as plainly as it can be written."""
    import mlx.core as mx
    from mlx_lm.models.cache import QuantizedKVCache

    cache = [QuantizedKVCache(group_size=32, bits=bits) for _ in model.layers]
    for at in range(0, len(prompt) - 1, 16):
        model(mx.array([prompt[at : min(at + 16, len(prompt) - 1)]]), cache=cache)
    newest, found = prompt[-1], []
    for _ in range(tokens):
        newest = int(mx.argmax(model(mx.array([[newest]]), cache=cache)[0, -1]).item())
        found.append(newest)
    return found


@pytest.mark.parametrize("bits", [4, 8])
def test_tokens_are_those_of_mlx_lms_own_quantized_cache(drive: Any, wide: loading.Loaded, bits: int) -> None:
    driver = drive(bits)
    for seq, prompt in enumerate(prompts(3)):
        driver.start(seq, prompt, max_tokens=20)
    together = driver.run()
    assert [together[seq] for seq in range(3)] == [by_hand(wide.model, prompt, 20, bits) for prompt in prompts(3)]


def test_they_take_less_memory(wide: loading.Loaded) -> None:
    plain = kv_bytes_per_token(wide)
    assert kv_bytes_per_token(wide, solo.cache_maker(wide.model, 8, 32)) < plain * 0.4
    assert kv_bytes_per_token(wide, solo.cache_maker(wide.model, 4, 32)) < plain * 0.25


def test_pre_emption_cancel_and_reuse_change_no_token(drive: Any) -> None:
    prompt, other = prompts(2, seed=9)
    cold = drive()
    cold.start(1, prompt, max_tokens=24)
    cold.start(2, other, max_tokens=24)
    expected = cold.run()
    prefix = PrefixCache(4 * MIB)
    driver = drive(prefix=prefix)
    driver.start(1, prompt, max_tokens=24, priority="row")
    for _ in range(9):
        driver.step()
    driver.start(2, other, max_tokens=24)
    assert driver.run() == expected
    assert driver.core.preemptions == 1
    follow_up = [*other, *expected[2], 9, 10]
    driver.start(3, follow_up, max_tokens=4)
    driver.run()
    assert driver.cached[3] >= len(other)
    driver.start(4, prompt, max_tokens=24)
    driver.step()
    driver.core.cancel(4)
    assert driver.core.idle


def test_a_model_that_cannot_is_refused_with_the_reason(make_host: Callable[..., Host]) -> None:
    last = make_host(kv_bits=8).ask(max_tokens=2).last
    assert isinstance(last, Failed)
    assert (last.status, last.code) == (501, "unsupported_execution")
    assert "16" in last.message
    assert "MLXPLATFORM_KV_BITS" in last.message
