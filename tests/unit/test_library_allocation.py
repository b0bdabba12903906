"""Spreading bits over layers: enough of them, where they help most, by the same rule every time."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from workers.trainer.allocation import Layer, allocate, average, raised

NAMES = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"]
kls = st.one_of(st.floats(0, 5), st.just(math.nan))


@st.composite
def models(draw: st.DrawFn) -> list[Layer]:
    blocks = draw(st.integers(1, 8))
    names = ["model.embed_tokens", *(f"model.layers.{n}.{name}" for n in range(blocks) for name in NAMES)]
    layers = []
    for name in names:
        low, high = draw(kls), draw(kls)
        layers.append(Layer(name, draw(st.sampled_from([64, 4096, 100_000])), {4: low, 8: high}))
    return layers


@settings(max_examples=60, deadline=None)
@given(models(), st.floats(4.5, 8.5))
def test_the_target_is_a_floor_unless_nothing_more_helps(layers: list[Layer], target: float) -> None:
    chosen = allocate(layers, [4, 8], target, 0.5)

    assert set(chosen) == {layer.name for layer in layers} and set(chosen.values()) <= {4, 8}
    if average(chosen, layers, 0.5) < target - 1e-9:
        left = [layer for layer in layers if chosen[layer.name] == 4]
        assert all(not layer.divergence[4] > layer.divergence[8] or math.isnan(layer.divergence[8]) for layer in left)


@settings(max_examples=30, deadline=None)
@given(models(), st.floats(4.5, 8.5), st.randoms(use_true_random=False))
def test_the_order_of_layers_does_not_matter(layers: list[Layer], target: float, random: object) -> None:
    shuffled = list(layers)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert allocate(shuffled, [4, 8], target, 0.5) == allocate(layers, [4, 8], target, 0.5)


def test_bits_go_where_they_save_most() -> None:
    quiet = {4: 0.01, 8: 0.009}
    layers = [Layer(f"model.layers.{n}.mlp.up_proj", 1000, quiet) for n in range(10)]
    layers[5] = Layer("model.layers.5.mlp.up_proj", 1000, {3: 2.0, 4: 2.0, 8: 0.01})
    layers = [Layer(x.name, x.parameters, {3: x.divergence[4] * 2, **x.divergence}) for x in layers]

    chosen = allocate(layers, [3, 4, 8], 4.95, 0.5)

    assert chosen["model.layers.5.mlp.up_proj"] == 8
    assert sum(bits == 8 for bits in chosen.values()) <= 3


def test_ends_and_embeddings_are_protected() -> None:
    same = {4: 0.1, 8: 0.01}
    names = ["model.embed_tokens", *(f"model.layers.{n}.mlp.up_proj" for n in range(20)), "lm_head"]
    layers = [Layer(name, 1000, same) for name in names]

    # The floor raises one layer of each block; what is left of the budget goes to the protected ones first.
    chosen = allocate(layers, [4, 8], 4.5, 0.5)
    more = allocate([x for x in layers if "layers" not in x.name] + layers[1:21], [4, 8], 8.4, 0.5)

    assert all(chosen[f"model.layers.{n}.mlp.up_proj"] == 8 for n in range(20))
    assert more["model.embed_tokens"] == more["lm_head"] == 8


def test_of_two_widths_the_higher_goes_to_the_most_sensitive_that_the_target_pays_for() -> None:
    sensitivities, sizes = {"a": 0.1, "head": 0.3, "b": 0.2, "c": -0.1}, {"a": 10, "head": 70, "b": 10, "c": 10}

    def chosen(target: float) -> set[str]:
        return raised(sensitivities, sizes, (4, 8), target, 0.5)

    assert chosen(4.5) == chosen(3.0) == set()
    assert chosen(4.95) == {"b"}  # the head alone costs 2.8 bits of the average
    assert chosen(7.35) == {"head"}
    assert chosen(8.5) == {"head", "b", "a", "c"}
