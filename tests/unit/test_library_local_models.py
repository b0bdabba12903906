"""The library sees whole models only, and finds them by id only."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from mlxplatform.library import architectures, local_models
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


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "unheard_of"}, "its architecture unheard_of is not known here"),
        ({"model_type": "cache"}, "its architecture cache is not known here"),  # a module beside the models, no model
        ({"model_type": "t5"}, "its architecture t5 is not known here"),
        ({"model_type": "roberta"}, "its architecture roberta is not known here"),
        ({"model_type": "whisper"}, "its weights are not in the layout of mlx-whisper: weights.safetensors is missing"),
        ({"model_file": "own.py"}, "it brings its own code, which is not run here"),
        (
            {"quantization_config": {"quant_method": "bitsandbytes"}},
            "its weights are packed by bitsandbytes, which is not read here",
        ),
        ({"model_type": "mistral"}, ""),
        ({"model_type": "qwen3_moe"}, ""),
        ({"model_type": "bailing_hybrid", "architectures": ["BailingMoeV3ForCausalLM"]}, ""),
        ({"model_type": "bert"}, ""),
        ({"quantization_config": {"quant_method": "awq"}}, ""),
        ({"quantization_config": {"bits": 4}, "quantization": {"bits": 4, "group_size": 64}}, ""),
    ],
)
def test_what_cannot_be_run_here_is_listed_with_the_reason(home: Path, changes: dict[str, Any], reason: str) -> None:
    path = home / "models" / "tiny" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    model = local_models.find("tiny", home)

    assert model is not None and model.obstacle == reason


def test_weights_under_another_name_are_not_found_by_those_who_load_them(home: Path) -> None:
    folder = home / "models" / "tiny"
    (folder / "model.safetensors").rename(folder / "consolidated.safetensors")

    model = local_models.find("tiny", home)

    assert model is not None and "model….safetensors" in model.obstacle


def test_nothing_is_claimed_where_the_library_is_not_installed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architectures, "_folder", lambda library: None)
    path = home / "models" / "tiny" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "unheard_of"}))

    model = local_models.find("tiny", home)

    assert model is not None and not model.obstacle


def test_models_are_told_from_what_they_share() -> None:
    folder = architectures._folder("mlx_lm")
    assert folder is not None
    names = {path.stem for path in (folder / "models").glob("*.py")}

    known = {name for name in names if architectures._has("mlx_lm", name, {"model_type": name})}

    assert {"llama", "qwen3", "solar_open", "lfm2-vl"} <= known
    assert known.isdisjoint({"__init__", "base", "cache", "rope_utils", "switch_layers"})
