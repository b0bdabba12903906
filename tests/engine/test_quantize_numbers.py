"""Quantizing models that are odd in themselves, in this process: what gives no numbers is named and never published."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.fixtures import tiny_model
from workers.trainer import adapters, evaluate, fuse, model_files, quality, quantize, report
from workers.trainer.control import Control
from workers.trainer.report import Explained

LAYER = "model.layers.0.mlp.down_proj.weight"
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model.directory(steps=tiny_model.TRAINED_STEPS), tmp_path / "source"))


@pytest.fixture
def run(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(report, "emit", lambda event, **fields: json.dumps(fields, allow_nan=False))

    def one(control: Control | None = None, **fields: Any) -> dict[str, Any]:
        order = {"method": "plain", "mode": "affine", "bits": 4, "group_size": 32, "recipe": None, "target_bpw": None}
        order |= {
            "model": "m",
            "output": "out",
            "dtype": "bfloat16",
            "report": True,
            "revision": "r",
            "device": "cpu",
            "job": "j",
        }
        places = {"source": str(source), "models": str(tmp_path / "models"), "work": str(tmp_path / "work"), "source_bytes": 1}
        return quantize.run({**order, **places, **fields}, control or Control())

    return one


def change(source: Path, name: str, value: float) -> None:
    tensors = load_file(source / "model.safetensors")
    tensors[name].flat[0] = value
    save_file(tensors, str(source / "model.safetensors"), metadata={"format": "mlx"})


@pytest.mark.parametrize(
    ("name", "value", "fields", "words"),
    [
        (LAYER, 1e6, {"dtype": "float16"}, "the new model"),
        (LAYER, 1e6, {"dtype": "float16", "report": False}, "model.layers.0.mlp.down_proj.scales"),
        (LAYER, math.inf, {"report": False}, "model.layers.0.mlp.down_proj.scales"),
        ("model.norm.weight", math.nan, {}, "the original"),
        ("model.norm.weight", math.nan, {"report": False, "target_bpw": 6.0, "candidate_bits": [4, 8]}, "model.norm.weight"),
    ],
)
def test_a_model_that_gives_no_numbers_is_never_published(
    run: Run, source: Path, tmp_path: Path, name: str, value: float, fields: dict[str, Any], words: str
) -> None:
    change(source, name, value)

    with pytest.raises(Explained) as failure:
        run(**fields)

    assert failure.value.code == "not_finite" and words in failure.value.message
    assert list((tmp_path / "models").iterdir() if (tmp_path / "models").exists() else ()) == []


def test_an_original_that_is_deleted_meanwhile_makes_no_model_without_a_tokenizer(run: Run, source: Path, tmp_path: Path) -> None:
    class Deleting(Control):
        def between_steps(self) -> None:
            shutil.rmtree(source, ignore_errors=True)  # its weights are open; everything else is gone

    with pytest.raises(Explained, match="went away meanwhile"):
        run(Deleting(), report=False)

    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize(("said", "ends"), [(1, "window_too_short"), ("many", ""), (16, "")])
def test_windows_follow_what_a_configuration_says_where_it_can_be_true(run: Run, source: Path, said: Any, ends: str) -> None:
    config = json.loads((source / "config.json").read_text()) | {"max_position_embeddings": said}
    (source / "config.json").write_text(json.dumps(config))

    if ends:
        with pytest.raises(Explained, match="single token"):
            run()
    else:
        assert run()["quality"]["tokens"] == 8 * (15 if said == 16 else 255)


@pytest.mark.parametrize(
    ("mode", "bits", "group"),
    [
        ("mxfp4", 4, 32),
        pytest.param("nvfp4", 4, 16, marks=pytest.mark.drill),
        pytest.param("mxfp8", 8, 32, marks=pytest.mark.drill),
    ],
)
def test_the_report_of_a_mode_is_what_its_numbers_amount_to(
    run: Run, source: Path, tmp_path: Path, mode: str, bits: int, group: int
) -> None:
    """Perplexity and divergence again, by numpy in double precision from the two models' logits."""
    found = run(mode=mode, bits=bits, group_size=group)["quality"]

    windows = quality.Evaluation.of(source, "cpu", tmp_path).windows
    theirs, ours = (_log_probabilities(folder, windows) for folder in (source, tmp_path / "models" / "out"))
    losses = [-np.take_along_axis(logs[:, :-1], windows[:, 1:, None], -1).mean() for logs in (theirs, ours)]
    divergence = (np.exp(theirs) * (theirs - ours)).sum(-1)
    assert found["perplexity"]["baseline"] == pytest.approx(math.exp(losses[0]), rel=1e-4)
    assert found["perplexity"]["quantized"] == pytest.approx(math.exp(losses[1]), rel=1e-4)
    assert found["kl"]["mean"] == pytest.approx(divergence.mean(), rel=1e-3)
    assert found["kl"]["max"] == pytest.approx(divergence.max(), rel=1e-3)
    assert found["same_top"] == pytest.approx((theirs.argmax(-1) == ours.argmax(-1)).mean(), abs=1e-5)


def _log_probabilities(folder: Path, windows: np.ndarray) -> np.ndarray:
    model, _ = model_files.load(folder, dense=True, dtype="float32")
    logits = np.array(model(mx.array(windows)), np.float64)
    return logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True)) - logits.max(-1, keepdims=True)


def test_an_evaluation_is_what_its_rows_amount_to(run: Run, source: Path, tmp_path: Path) -> None:
    """Two rows of plain text, every token of which counts but the first: the perplexity over both, by hand."""
    texts = ["What is the capital of Japan?", "no"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    task = {"source": str(source), "adapter_path": "", "tuned_path": str(source), "rows": str(tmp_path / "rows.jsonl")}
    task |= {"formats": ["text"], "held_fraction": 0.0, "max_examples": 9, "device": "cpu"}
    found = evaluate.run({**task, "max_seq_length": 64, "mask_prompt": True, "loss_on": "last"}, Control())

    eos = json.loads((source / "generation_config.json").read_text())["eos_token_id"]
    losses = []
    for text in texts:
        ids = np.array([[*model_files.text_ids(source, text), eos]])
        logs = _log_probabilities(source, ids)[:, :-1]
        losses += (-np.take_along_axis(logs, ids[:, 1:, None], -1)).ravel().tolist()
    assert found["base"]["tokens"] == len(losses)
    assert found["base"]["perplexity"] == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-4)
    assert found["base"]["loss_se"] == pytest.approx(np.std(losses, ddof=1) / math.sqrt(len(losses)), rel=1e-4)
    assert found["tuned"] == found["base"] and found["loss_gain"] == 0


def test_an_evaluation_of_what_gives_no_numbers_says_so(run: Run, source: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "once"}\n')
    spoiled = Path(shutil.copytree(source, tmp_path / "spoiled"))
    change(spoiled, "model.norm.weight", math.nan)
    task = {
        "adapter_path": "",
        "rows": str(tmp_path / "rows.jsonl"),
        "formats": ["text"],
        "held_fraction": 0.0,
        "max_examples": 9,
    }
    task |= {"device": "cpu", "max_seq_length": 64, "mask_prompt": True, "loss_on": "last"}

    for base, tuned, words in ((source, spoiled, "The fine-tuned model"), (spoiled, source, "The base")):
        with pytest.raises(Explained, match=f"{words} says nothing that is a number on row 1"):
            evaluate.run({**task, "source": str(base), "tuned_path": str(tuned)}, Control())


def test_an_adapter_too_strong_for_its_base_is_not_fused(run: Run, source: Path, tmp_path: Path) -> None:
    model, _ = model_files.load(source)
    config = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": {"rank": 2, "scale": 1e9, "dropout": 0.0}}
    config["lora_parameters"]["keys"] = ["mlp.down_proj"]
    adapters.attach(model, config)
    for module in model.modules():
        if "lora_b" in module:
            module.lora_b = mx.full(module.lora_b.shape, 3e38)
    folder = tmp_path / "adapter"
    folder.mkdir()
    adapters.write(folder, model, config)
    task = {"source": str(source), "models": str(tmp_path / "models"), "adapter_path": str(folder), "output": "fused"}

    with pytest.raises(Explained) as failure:
        fuse.run({**task, "model": "m", "revision": "r", "adapter": "a", "job": "j"}, Control())

    assert failure.value.code == "not_finite" and "down_proj" in failure.value.message
    assert list((tmp_path / "models").iterdir()) == []
