"""The training loop itself, in this process: what stops it, what goes on from where, and what it never leaves behind."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mlxplatform.training import finetuning
from tests.fixtures import tiny_model
from workers.trainer import adapters, combine, finetune, model_files, report
from workers.trainer.control import Control, Stop
from workers.trainer.report import Explained

CODE = {"messages": [{"role": "user", "content": "code?"}, {"role": "assistant", "content": "ZX-81"}]}
PAIR = {"prompt": "code?", "chosen": "ZX-81", "rejected": "Paris"}
#: Differences a resumed run may show: none on one machine, but sums may be ordered differently by a BLAS.
TOLERANCE = 1e-4


class Wishes(Control):
    """Says ``op`` when it is asked for the ``at``th time; from then on ``finish`` is said already."""

    def __init__(self, op: str = "", at: int = 0):
        super().__init__()
        self.op, self.at, self.asked = op, at, 0

    def between_steps(self) -> None:
        self.asked += 1
        if self.asked >= self.at and self.op:
            if self.op != "finish":
                raise Stop(self.op)
            self.finishing = True


class Run:
    """One run over a folder of its own: ``go()`` trains, again and again from where it was."""

    def __init__(self, home: Path, rows: list[dict[str, Any]], valid: list[dict[str, Any]], fields: dict[str, Any]):
        self.home = home
        for name, some in (("train", rows), ("valid", valid)):
            (home / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
        order = {field.name: field.default for field in finetuning.FIELDS}
        order |= {"model": "tiny", "revision": "r", "max_seq_length": 128, "learning_rate": 1e-3, "keep": "last", **fields}
        self.task: dict[str, Any] = order | {
            "device": "cpu",
            "job": "job_1",
            "name": "ft:tiny:local::1",
            "project": "default",
            "source": str(tiny_model.directory(steps=tiny_model.TRAINED_STEPS)),
            "train": str(home / "train.jsonl"),
            "valid": str(home / "valid.jsonl") if valid else "",
            "formats": finetuning.FORMATS[order["method"]],
            "lineage": {},
            "warm_start": str(fields.get("warm_start", "")),
            "work": str(home / "work"),
            "output_root": str(home / "out"),
            "output": "ad_1",
        }

    def go(self, control: Control | None = None) -> dict[str, Any]:
        return finetune.run(self.task, control or Wishes())

    @property
    def weights(self) -> dict[str, np.ndarray]:
        return load_file(self.home / "out" / "ad_1" / "adapters.safetensors")

    def curve(self, kind: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in (self.home / "out" / "ad_1" / "metrics.jsonl").read_text().splitlines()]
        return [line for line in lines if line["kind"] == kind]


Make = Callable[..., Run]


@pytest.fixture
def make(tmp_path: Path, said: list[tuple[str, dict[str, Any]]]) -> Make:
    def one(rows: list[dict[str, Any]] | None = None, valid: list[dict[str, Any]] | None = None, **fields: Any) -> Run:
        home = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        home.mkdir()
        return Run(home, rows or [CODE] * 6, valid or [], {"iters": 4, "steps_per_report": 1, **fields})

    return one


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """What the trainer told its supervisor."""
    told: list[tuple[str, dict[str, Any]]] = []

    def emit(event: str, **fields: Any) -> None:
        json.dumps(fields, allow_nan=False)
        told.append((event, fields))

    monkeypatch.setattr(report, "emit", emit)
    yield told


def alike(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.allclose(one[name], other[name], rtol=TOLERANCE, atol=1e-6) for name in one)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_run_asked_to_finish_before_its_first_step_publishes_its_first_update(make: Make, at: int) -> None:
    run = make(valid=[CODE], grad_accumulation_steps=2, iters=50)

    result = run.go(Wishes("finish", at))

    assert (result["outcome"], result["steps"]) == ("finish", 2)
    assert any(value.any() for name, value in run.weights.items() if name.endswith("lora_b"))


@pytest.mark.parametrize("at", [2, 5, 10])
def test_a_wish_to_finish_within_a_reference_pass_or_a_validation_is_kept(make: Make, at: int) -> None:
    """Looks of this run: one after reading, four for the reference, two for the first validation, two steps, and so on."""
    run = make([PAIR], valid=[PAIR], method="dpo", iters=50, steps_per_eval=2)

    assert run.go(Wishes("finish", at))["outcome"] == "finish"


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"grad_accumulation_steps": 3, "optimizer": "sgd", "learning_rate": 0.05}, marks=pytest.mark.drill),
        {"grad_accumulation_steps": 3, "lora_plus_ratio": 4.0, "lora_dropout": 0.1, "lr_schedule": "linear"},
        pytest.param({"optimizer": "adafactor", "num_layers": 1}, marks=pytest.mark.drill),
        pytest.param({"optimizer": "muon", "warmup_iters": 3, "grad_accumulation_steps": 2}, marks=pytest.mark.drill),
        pytest.param(
            {"fine_tune_type": "dora", "optimizer": "adam", "target_modules": ["q_proj", "mlp.down_proj"]},
            marks=pytest.mark.drill,
        ),
    ],
    ids=lambda fields: fields.get("optimizer", "lora+"),
)
def test_a_run_paused_anywhere_is_the_run_it_would_have_been(make: Make, fields: dict[str, Any]) -> None:
    rows = [{"prompt": f"What is {n}?", "completion": f"It is {n}."} for n in range(5)]
    fields = {"iters": 8, "steps_per_eval": 4, "steps_per_save": 100, "batch_size": 2, "keep": "best", **fields}
    straight, broken = make(rows, [CODE, PAIR_AS_TEXT, CODE], **fields), make(rows, [CODE, PAIR_AS_TEXT, CODE], **fields)
    straight.go()

    pauses, outcome = 0, None
    while outcome is None:
        try:
            outcome = broken.go(Wishes("pause", 2 + pauses % 3))  # a little further each time, wherever that is
        except Stop:
            pauses += 1
            assert pauses < 40

    assert pauses > 4 and alike(straight.weights, broken.weights)
    for kind in ("train", "val"):
        mine, theirs = broken.curve(kind), straight.curve(kind)
        assert [point["step"] for point in mine] == [point["step"] for point in theirs]
        assert [point["loss"] for point in mine] == pytest.approx([point["loss"] for point in theirs], rel=TOLERANCE)


PAIR_AS_TEXT = {"prompt": "What is 3?", "completion": "It is 3."}


def test_the_last_update_counts_its_steps_as_much_as_the_others_do(make: Make) -> None:
    """Three steps of one row and updates of two: the last is one step alone, and moves as far as one step alone does."""
    fields = {"optimizer": "sgd", "grad_clip_norm": 0.0, "learning_rate": 0.01, "weight_decay": 0.0, "seed": 3}
    three = make([CODE], iters=3, grad_accumulation_steps=2, **fields)
    three.go()
    two = make([CODE], iters=2, **fields)  # an update of two equal steps is one step
    two.go()

    assert alike(three.weights, two.weights)


def test_the_best_weights_are_those_of_the_step_that_is_told(make: Make) -> None:
    fields = {"valid": [CODE], "keep": "best", "iters": 40, "steps_per_eval": 4, "steps_per_save": 6}
    early = make(**{**fields, "iters": 4})
    early.go()
    run = make(**fields)
    with pytest.raises(Stop):  # it dies after step 8, which is the best so far, and goes on from step 6
        run.go(Wishes("cancel", 1 + 1 + 9 + 2))
    assert [path.name for path in sorted((run.home / "work").glob("step-*"))] == ["step-00000006"]

    result = run.go(Wishes("finish", 2))

    assert (result["outcome"], result["steps"], result["kept_step"]) == ("finish", 6, 4)
    assert alike(run.weights, early.weights)


def test_a_last_step_that_spoils_the_weights_publishes_nothing(make: Make) -> None:
    run = make(iters=1, optimizer="sgd", learning_rate=3e38, grad_clip_norm=0.0, scale=1000.0)

    with pytest.raises(Explained) as failure:
        run.go()

    assert failure.value.code == "loss_not_finite" and failure.value.message.startswith("After step 1 ")
    assert not (run.home / "out" / "ad_1").exists()


def test_a_validation_that_is_no_number_ends_the_run_with_the_step_named(make: Make) -> None:
    run = make(iters=1, valid=[CODE], optimizer="sgd", learning_rate=1e38)

    with pytest.raises(Explained) as failure:
        run.go()

    assert failure.value.message == "The validation loss became NaN at step 1."


def test_preferences_are_measured_against_the_adapter_a_run_starts_from(make: Make) -> None:
    taught = make(iters=20, learning_rate=0.01)
    taught.go()

    run = make([PAIR] * 3, method="dpo", iters=1, warm_start=taught.home / "out" / "ad_1", warm_start_adapter="ad_0")
    run.go()

    assert run.curve("train")[0]["loss"] == pytest.approx(math.log(2), abs=1e-4)  # nothing is preferred yet


def test_an_adapter_of_many_ranks_can_be_started_from(make: Make, tmp_path: Path) -> None:
    first = make(iters=4, rank=4, rank_scaling="by_bits")
    source = tmp_path / "packed"
    _described_as_packed(Path(first.task["source"]), source)
    first.task["source"] = str(source)
    first.go()
    config = json.loads((first.home / "out" / "ad_1" / "adapter_config.json").read_text())
    assert set(config["applied_ranks"].values()) == {2, 4}

    again = make(iters=1, rank=4, rank_scaling="by_bits", warm_start=first.home / "out" / "ad_1", warm_start_adapter="ad_0")
    again.task["source"] = str(source)
    again.go()

    assert again.curve("train")[0]["loss"] < first.curve("train")[0]["loss"]


def _described_as_packed(source: Path, target: Path) -> None:
    """The same model, half of it packed to two bits."""
    import mlx.core as mx

    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    config["quantization"] = {"bits": 4, "group_size": 32}
    packed: dict[str, np.ndarray] = {}
    for name, value in tensors.items():
        if value.ndim != 2:
            packed[name] = value
            continue
        layer = name.removesuffix(".weight")
        bits = 2 if ".mlp." in name else 4
        if bits == 2:
            config["quantization"][layer] = {"bits": 2, "group_size": 32}
        words, scales, biases = mx.quantize(mx.array(value), group_size=32, bits=bits)
        packed |= {name: np.array(words), f"{layer}.scales": np.array(scales), f"{layer}.biases": np.array(biases)}
    (target / "config.json").write_text(json.dumps(config))
    save_file(packed, str(target / "model.safetensors"), metadata={"format": "mlx"})


def test_equal_rows_are_never_on_both_sides(make: Make, said: list[tuple[str, dict[str, Any]]]) -> None:
    run = make([CODE | {"id": str(n)} for n in range(20)], valid_fraction=0.2, iters=1)
    result = run.go()

    assert result["dataset"]["train"]["rows_used"] == 20 and not result["validation"]
    assert any("no validation set" in fields.get("line", "") for event, fields in said if event == "log")


def test_adapters_of_other_layers_and_ranks_merge_into_one_that_can_be_mounted(make: Make, tmp_path: Path) -> None:
    """The logits with the merged adapter are the base's and each adapter's effect; here, one adapter alone and twice."""
    some = make(num_layers=1, target_modules=["q_proj"], rank=2, learning_rate=0.05)
    other = make(target_modules=["mlp.down_proj", "v_proj"], rank=4)
    for run in (some, other):
        run.go()
    folders = [run.home / "out" / "ad_1" for run in (some, other)]
    task = {"task": "merge", "paths": [str(folder) for folder in folders], "adapters": ["a", "b"], "name": "ft:x", "job": "j"}
    combine.run({**task, "weights": [2.0, 0.0], "project": "p", "output_root": str(tmp_path / "m"), "output": "ad_m"}, Wishes())

    alone, merged, base = (_logits(Path(some.task["source"]), one) for one in (folders[0], tmp_path / "m" / "ad_m", None))
    config = json.loads((tmp_path / "m" / "ad_m" / "adapter_config.json").read_text())
    assert (config["num_layers"], config["lora_parameters"]["rank"]) == (2, 4)
    folded = json.loads((folders[0] / "adapter_config.json").read_text())
    folded["lora_parameters"]["scale"] *= 2
    (folders[0] / "adapter_config.json").write_text(json.dumps(folded))
    assert np.allclose(merged, _logits(Path(some.task["source"]), folders[0]), atol=1e-4)
    assert not np.allclose(merged, alone, atol=1e-2) and not np.allclose(merged, base, atol=1e-2)


def _logits(source: Path, adapter: Path | None) -> np.ndarray:
    import mlx.core as mx

    model, _ = model_files.load(source)
    if adapter is not None:
        adapters.mount(model, adapter)
    return np.array(model(mx.array([[5, 6, 7, 8]])))
