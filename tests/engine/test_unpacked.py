"""Packed layers computed densely: the same answers and the same gradients, and what is learned goes back into the packed ones."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten

from workers.trainer.unpacked import UnpackedEmbedding, UnpackedLinear, unpacked

#: What sums in another order may differ by.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.plain, self.out = nn.Embedding(32, 64), nn.Linear(64, 64, bias=True), nn.Linear(64, 32, bias=False)

    def __call__(self, ids: mx.array) -> mx.array:
        return self.out(self.plain(self.embed(ids))) + self.embed.as_linear(self.plain(self.embed(ids)))


@pytest.fixture(params=[2, 3, 4, 8])
def packed(request: pytest.FixtureRequest) -> Model:
    mx.random.seed(3)
    model = Model()
    nn.quantize(model, group_size=32, bits=request.param)
    model.freeze()
    for layer in (model.embed, model.plain, model.out):
        layer.unfreeze(keys=["scales", "biases"])
    mx.eval(model.parameters())
    return model


def gradients(model: Model, ids: mx.array) -> dict[str, mx.array]:
    loss: Any = nn.value_and_grad(model, lambda given: (model(given) ** 2).mean())
    flat: Any = tree_flatten(loss(ids)[1])
    return dict(flat)


def test_answers_and_gradients_are_those_of_the_packed_layers(packed: Model) -> None:
    ids = mx.array([[1, 5, 31, 5]])
    said, expected = packed(ids), gradients(packed, ids)
    with unpacked(packed):
        assert type(packed.embed) is UnpackedEmbedding and type(packed.out) is UnpackedLinear
        for layer in (packed.embed, packed.plain, packed.out):
            assert layer.trainable_parameters() == {}
            layer.unfreeze(keys=["scales", "biases"])
        assert mx.allclose(packed(ids), said, **CLOSE)
        found = gradients(packed, ids)
    assert found.keys() == expected.keys()
    assert all(mx.allclose(found[name], expected[name], **CLOSE) for name in expected)


def test_what_is_learned_goes_back_and_codes_stay(packed: Model) -> None:
    ids, codes = mx.array([[2, 3]]), packed.out.weight
    with unpacked(packed):
        packed.out.scales = packed.out.scales * 2
        packed.out.biases = packed.out.biases * 2
        said = packed(ids)
    assert type(packed.out) is nn.QuantizedLinear and packed.out.weight is codes
    assert mx.allclose(packed(ids), said, **CLOSE)
