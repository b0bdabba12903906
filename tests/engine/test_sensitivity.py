"""Measuring layers: blocks before the changed one are not run again, and no figure changes for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from tests.fixtures import tiny_model
from workers.trainer import model_files, quantize, sensitivity
from workers.trainer.replay import Replay


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.install(tmp_path_factory.mktemp("sensitive"), steps=tiny_model.TRAINED_STEPS)


def loaded(source: Path) -> Any:
    model, _ = model_files.load(source, dense=True, dtype="float32")
    mx.eval(model.parameters())
    return model


class Counted:
    """A block that counts its runs."""

    runs = 0

    def __init__(self, block: Any):
        self._block = block

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        Counted.runs += 1
        return self._block(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._block, name)


def test_a_layer_is_measured_from_its_own_block_on_with_the_same_figures(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows, _ = sensitivity.calibration_windows(source)
    measured = {}
    for name in ("replayed", "whole"):
        model = loaded(source)
        layers = quantize._layers(model)
        model.layers[:] = [Counted(block) for block in model.layers]
        if name == "whole":
            monkeypatch.setattr(Replay, "_record", lambda replay: None)
        Counted.runs = 0
        found = sensitivity.measure(model, layers, (4, 8), 32, windows, tmp_path / name, lambda index, total: None)
        measured[name] = ({layer.name: dict(layer.divergence) for layer in found}, Counted.runs)

    assert measured["replayed"][0] == measured["whole"][0]
    assert measured["replayed"][1] < measured["whole"][1]


def test_an_architecture_that_cannot_be_replayed_runs_whole(source: Path) -> None:
    windows, _ = sensitivity.calibration_windows(source)
    model = loaded(source)
    kind = type(model)
    plain = [model(window) for window in windows]

    class Copying(kind):  # type: ignore[misc, valid-type]
        @property
        def layers(self) -> list[Any]:
            return list(super().layers)

    model.__class__ = Copying
    replay = Replay(model, windows)

    assert not replay.works
    assert all(mx.array_equal(replay.logits(n, "model.layers.1.mlp.down_proj"), plain[n]).item() for n in range(len(windows)))
