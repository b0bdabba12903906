"""The library sees whole models only, and finds them by id only."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from mlxplatform.library import local_models
from tests.fixtures import tiny_model

PATH_LIKE = [
    "../../etc",
    "/etc",
    "./x",
    "~",
    "file:///etc",
    "https://127.0.0.1/x",
    "a\u0000b",
    "models/../../x",
    "tiny/",
    "tiny\n",
    ".",
    "..",
    "a/b/c",
    "a" * 4096,
    "",
    None,
    7,
    ["tiny"],
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    tiny_model.install(tmp_path, "tiny")
    return tmp_path


def test_a_model_is_described_from_its_headers(home: Path) -> None:
    model = local_models.find("tiny", home)

    assert model is not None
    assert (model.kind, model.architecture, model.context, model.dtype) == ("chat", "llama", 2048, "float32")
    assert model.capabilities == ("chat", "completion")
    assert model.quantization is None
    assert model.parameters * 4 == pytest.approx(model.bytes, rel=0.02)
    assert model.chat_template == tiny_model.CHAT_TEMPLATE


@pytest.mark.parametrize("name", PATH_LIKE)
def test_path_like_ids_find_nothing(home: Path, name: object) -> None:
    assert local_models.find(name, home) is None


def test_an_owner_and_name_is_an_id(home: Path) -> None:
    tiny_model.install(home, "somebody/tiny-2")

    assert [model.id for model in local_models.scan(home)] == ["somebody/tiny-2", "tiny"]


@pytest.mark.parametrize("damage", ["truncated", "no-header", "no-config", "no-weights", "missing-shard", "private"])
def test_half_models_are_not_listed(home: Path, damage: str) -> None:
    folder = home / "models" / "tiny"
    weights = folder / "model.safetensors"
    if damage == "truncated":
        os.truncate(weights, weights.stat().st_size - 1)
    elif damage == "no-header":
        weights.write_bytes(b"\xff" * 64)
    elif damage == "no-config":
        (folder / "config.json").unlink()
    elif damage == "no-weights":
        weights.unlink()
    elif damage == "missing-shard":
        index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        folder.rename(home / "models" / ".partial-0123")

    assert local_models.scan(home) == []


def test_a_change_of_weights_config_or_template_is_another_revision(home: Path) -> None:
    folder = home / "models" / "tiny"
    seen = {local_models.find("tiny", home).revision}  # type: ignore[union-attr]
    for name in ("config.json", "tokenizer_config.json", "model.safetensors"):
        file = folder / name
        content = bytearray(file.read_bytes())
        content[-2] = ord(" ")
        file.write_bytes(bytes(content) if name == "model.safetensors" else bytes(content[:-2]) + b" " + bytes(content[-1:]))
        model = local_models.find("tiny", home)
        assert model is not None
        seen.add(model.revision)

    assert len(seen) == 4


def test_a_copy_has_the_same_revision(home: Path) -> None:
    shutil.copytree(home / "models" / "tiny", home / "models" / "copy")

    first, second = local_models.scan(home)
    assert first.revision == second.revision


def test_the_newest_complete_snapshot_of_the_hub_cache_is_one_row(home: Path) -> None:
    snapshots = home / "hub" / "models--somebody--tiny" / "snapshots"
    for n, name in enumerate(("old", "new", "incomplete")):
        shutil.copytree(home / "models" / "tiny", snapshots / name)
        os.utime(snapshots / name, (1000 + n, 1000 + n))
    (snapshots / "incomplete" / "model.safetensors").unlink()
    os.utime(snapshots / "incomplete", (2000, 2000))

    found = [(model.id, model.source, model.path.name) for model in local_models.scan(home)]
    assert found == [("somebody/tiny", "hub", "new"), ("tiny", "home", "tiny")]


def test_the_default_is_the_configured_then_the_starter_then_the_first(home: Path) -> None:
    def default(configured: str) -> str | None:
        model = local_models.default_for("chat", home, configured=configured)
        return model.id if model else None

    assert default("") == "tiny"
    tiny_model.install(home, "aaa")
    tiny_model.install(home, local_models.STARTER)
    assert default("") == local_models.STARTER
    assert default("aaa") == "aaa"
    assert default("not-there") is None
