"""Model and adapter directories as a careless or hostile world leaves them: one bad one never hides the others."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlxplatform.library import fit, local_adapters, local_models
from mlxplatform.library.machine import Machine
from mlxplatform.training import adapter_orders
from tests.fixtures import tiny_model
from tests.fixtures.adapter import write_adapter

MACHINE = Machine("test", 8 << 30, 4 << 30, 1e10, True, False)
NUMBERS = [-1, 0, 10**30, 1.5, float("nan"), float("inf"), "8", True, None, [], {}]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    tiny_model.install(tmp_path, "good")
    shutil.copytree(tmp_path / "models" / "good", tmp_path / "models" / "odd")
    return tmp_path


def listed(home: Path) -> set[str]:
    """Ids of what is listed, with everything a client would see of it computed and written as strict JSON."""
    models = local_models.scan(home)
    for model in models:
        shown = [fit.assess(model, MACHINE).describe(), fit.matrix(model), model.quantization, model.architecture]
        msgspec.json.encode([*shown, model.context, model.parameters, model.capabilities])
    return {model.id for model in models}


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def write_header(path: Path, header: Any, data: bytes = b"") -> None:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "header",
    [
        [],
        7,
        "text",
        {"a": []},
        {"a": None},
        {"a": {}},
        {"a": {**ENTRY, "shape": None}},
        {"a": {**ENTRY, "shape": 2}},
        {"a": {**ENTRY, "shape": ["2"]}},
        {"a": {**ENTRY, "shape": [-2]}},
        {"a": {**ENTRY, "shape": [True, 2]}},
        {"a": {**ENTRY, "shape": [2**70]}},
        {"a": {**ENTRY, "dtype": ["F32"]}},
        {"a": {**ENTRY, "dtype": "Q9"}},
        {"a": {**ENTRY, "dtype": "F16"}},
        {"a": {**ENTRY, "data_offsets": [0, "8"]}},
        {"a": {**ENTRY, "data_offsets": [0]}},
        {"a": {**ENTRY, "data_offsets": [8, 0]}},
        {"a": {**ENTRY, "data_offsets": [0, 8.0]}},
        {"a": {key: value for key, value in ENTRY.items() if key != "dtype"}},
        b"[" * 100_000,
        b"\xff\xfe{}",
        b'{"a": 1e400}',
    ],
    ids=repr,
)
def test_an_impossible_header_is_no_model_and_hides_no_other(home: Path, header: Any) -> None:
    write_header(home / "models" / "odd" / "model.safetensors", header, b"\0" * 8)

    assert listed(home) == {"good"}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(noise=st.binary(max_size=64), at=st.floats(0, 1), where=st.sampled_from(["model.safetensors", "config.json"]))
def test_noise_anywhere_hides_no_other(home: Path, noise: bytes, at: float, where: str) -> None:
    file = home / "models" / "odd" / where
    content = (home / "models" / "good" / where).read_bytes()
    place = int(at * min(len(content), 20_000))
    file.write_bytes(content[:place] + noise + content[place + len(noise) :])

    assert "good" in listed(home)


@pytest.mark.parametrize("value", NUMBERS, ids=repr)
@pytest.mark.parametrize(
    "name", ["max_position_embeddings", "hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim", "text_config"]
)
def test_an_impossible_number_in_a_config_hides_no_other(home: Path, name: str, value: Any) -> None:
    change(home / "models" / "odd" / "config.json", **{name: value})

    assert "good" in listed(home)


@pytest.mark.parametrize("value", [[], {}, [[1]], {"a": []}, 7, True, "x", None, -1, 1e300], ids=repr)
def test_nothing_in_a_config_hides_another_model_or_breaks_what_is_told_of_it(home: Path, value: Any) -> None:
    file = home / "models" / "odd" / "config.json"
    plain = json.loads(file.read_text())
    packed, text = ({"quantization_config": {"quant_method": value}}, {"text_config": {**plain, "layer_types": value}})
    names = ("architectures", "model_file", "vision_config", "quantization_config", "quantization", "layer_types", "rope_scaling")
    names += ("sliding_window", "sliding_window_pattern", "num_experts", "num_experts_per_tok", "kv_lora_rank", "head_dim")
    for said in [packed, text, *({name: value} for name in names)]:
        file.write_text(json.dumps({**plain, **said}))

        assert "good" in listed(home), said
        assert isinstance(adapter_orders.gguf_obstacle(json.loads(file.read_text())), str)


@pytest.mark.parametrize("value", [value for value in NUMBERS if value is not None], ids=repr)
@pytest.mark.parametrize("name", ["bits", "group_size"])
def test_a_model_packed_by_an_impossible_number_is_none(home: Path, name: str, value: Any) -> None:
    change(home / "models" / "odd" / "config.json", quantization={"bits": 4, "group_size": 64, name: value})

    assert listed(home) == {"good"}


@pytest.mark.parametrize("value", ["\ud800", "a\nb", "<b>", "../llama", "", "x" * 300, 7, ["llama"]], ids=ascii)
def test_an_architecture_is_a_plain_name(home: Path, value: Any) -> None:
    change(home / "models" / "odd" / "config.json", model_type=value)

    assert listed(home) == {"good"}


def test_links_to_themselves_and_pipes_are_passed_over(home: Path) -> None:
    models = home / "models"
    (models / "loop").symlink_to(models / "loop")
    (models / "odd" / "loop").symlink_to(models / "odd" / "loop")
    (models / "odd" / "nowhere").symlink_to(models / "gone")
    (models / "odd" / "tokenizer_config.json").unlink()
    os.mkfifo(models / "odd" / "tokenizer_config.json")
    (models / "piped").mkdir()
    os.mkfifo(models / "piped" / "config.json")
    (home / "hub" / "models--a--b").mkdir(parents=True)
    (home / "hub" / "models--a--b" / "snapshots").symlink_to(home / "hub")
    (home / "hub" / "models--c--d").symlink_to(home / "hub" / "models--c--d")
    (home / "hub" / "models--e--f").write_text("a file")

    assert listed(home) == {"good", "odd"}


@pytest.mark.parametrize("names", [["x" * 5000], ["\x00"], [""], [".."], [7], [["a"]], [None]], ids=ascii)
def test_an_index_that_names_nothing_is_no_model_in_either_place(home: Path, names: list[Any]) -> None:
    snapshot = home / "hub" / "models--somebody--odd" / "snapshots" / "one"
    shutil.copytree(home / "models" / "odd", snapshot)
    for folder in (home / "models" / "odd", snapshot):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict(enumerate(names))}))

    assert listed(home) == {"good"}


@pytest.mark.parametrize("template", [[{"name": ["a"], "template": {}}], [7, None], {"a": 1}, [{"name": "default"}]], ids=repr)
def test_an_odd_template_leaves_a_model_for_completions(home: Path, template: Any) -> None:
    (home / "models" / "odd" / "chat_template.jinja").unlink(missing_ok=True)
    change(home / "models" / "odd" / "tokenizer_config.json", chat_template=template)

    assert listed(home) == {"good", "odd"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("rank", value) for value in (0, -1, float("inf"), float("nan"), "8", True, None, 1.5)),
        *(("scale", value) for value in (float("inf"), float("nan"), 10**400, "8", True, None)),
        *(("keys", value) for value in (None, 7, "q_proj", [7], [None])),
    ],
    ids=ascii,
)
def test_an_adapter_with_an_impossible_configuration_is_none(tmp_path: Path, name: str, value: Any) -> None:
    write_adapter(tmp_path / "adapters" / "good")
    config = write_adapter(tmp_path / "adapters" / "odd") / "adapter_config.json"
    parameters = json.loads(config.read_text())["lora_parameters"]
    change(config, lora_parameters={**parameters, name: value})

    assert [adapter.id for adapter in local_adapters.scan(tmp_path)] == ["good"]


@pytest.mark.parametrize("config", ["", "[]", "7", "{", '{"lora_parameters": []}', '{"name": "\\ud800"}'], ids=ascii)
def test_an_adapter_without_a_configuration_is_none(tmp_path: Path, config: str) -> None:
    write_adapter(tmp_path / "adapters" / "good")
    (write_adapter(tmp_path / "adapters" / "odd") / "adapter_config.json").write_text(config)
    (tmp_path / "adapters" / "loop").symlink_to(tmp_path / "adapters" / "loop")

    assert [adapter.id for adapter in local_adapters.scan(tmp_path)] == ["good"]
