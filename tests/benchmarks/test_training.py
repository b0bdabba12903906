"""Training and quantizing against mlx-lm's own on the same machine, model and rows; and how fast the library is read."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import timeit
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mlxplatform.library import local_models, starters
from mlxplatform.training import finetuning, quantization
from tests.benchmarks.table import PAIRS, line, measured
from tests.fixtures import tiny_model
from workers.trainer.control import Control

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]

#: Ours over mlx-lm's: tokens per second of training, seconds of converting, seconds of a scan.
MIN_TRAIN, MAX_CONVERT, MAX_SCAN_S, MAX_YIELD = 0.97, 1.1, 1.0, 0.01
#: Questions timed, of which a run asks one a step.
ASKED = 100_000
STEPS, BATCH, LENGTH, WARM_UP = 7, 2, 128, 2
FOLDERS = 200


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("starter")
    starters.ensure(home)
    return home / "models" / local_models.STARTER


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    answer = "It is a long story, and it begins with a ferry, a dog and a bridge that was never built. " * 3
    turns = [[{"role": "user", "content": f"Story {n}?"}, {"role": "assistant", "content": answer}] for n in range(8)]
    path.write_text("".join(json.dumps({"messages": one}) + "\n" for one in turns))
    return path


def child(module: str, *arguments: str, task: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """The JSON lines a child prints."""
    given = json.dumps(task) + "\n" if task else ""
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(given)
        process.stdin.flush()
        said = [json.loads(text) for text in process.stdout if text.startswith("{")]
    assert process.returncode == 0
    return said


def ours(model: Path, rows: Path, work: Path) -> float:
    """Seconds per step of our trainer child."""
    order = {field.name: field.default for field in finetuning.FIELDS}
    task = {
        **order,
        "task": "finetune",
        "model": "m",
        "revision": "r",
        "name": "n",
        "job": "job_bench",
        "lineage": {},
        "project": "default",
        "dtype": "float32",
        "source": str(model),
        "train": str(rows),
        "valid": "",
        "formats": ["messages"],
        "iters": STEPS,
        "batch_size": BATCH,
        "max_seq_length": LENGTH,
        "learning_rate": 2e-4,
        "steps_per_report": 1,
        "keep": "last",
        "work": str(work / "work"),
        "output_root": str(work / "adapters"),
        "output": "ad_bench",
    }
    said = child("workers.trainer.main", task=task)
    shutil.rmtree(work, ignore_errors=True)
    steps = [event for event in said if event.get("kind") == "train"]
    tokens = [b["trained_tokens"] - a["trained_tokens"] for a, b in pairwise(steps)]
    seconds = [count / step["tokens_per_sec"] for count, step in zip(tokens, steps[1:], strict=True)]
    return statistics.median(seconds[WARM_UP - 1 :])


def theirs(model: Path, rows: Path) -> float:
    said = child("tests.benchmarks.bare_training", "train", str(model), str(rows), str(STEPS), str(BATCH), str(LENGTH))
    return statistics.median(said[-1]["seconds"][WARM_UP:])


def test_training_is_as_fast_as_mlx_lms(starter: Path, rows: Path, tmp_path: Path) -> None:
    ratios = []
    for _ in range(PAIRS):
        ratios.append(theirs(starter, rows) / ours(starter, rows, tmp_path / "ours"))
        print(f"{ratios[-1]:.3f}", end=" ", flush=True)  # a run that is stopped has said something
    value = measured(ratios)
    print("\n" + line("fine-tune tokens/s, ours / mlx_lm.lora (starter)", value, "ratio", f">= {MIN_TRAIN}"))
    assert value.high >= MIN_TRAIN


def test_asking_between_steps_costs_next_to_nothing(starter: Path, rows: Path, tmp_path: Path) -> None:
    source, _ = os.pipe()
    control = Control(os.fdopen(source, "rb"))
    asked = timeit.timeit(control.between_steps, number=ASKED) / ASKED
    step = ours(starter, rows, tmp_path / "ours")
    print(
        "\n" + line("asking whether others wait / one step (starter)", measured([asked / step] * 2), "ratio", f"<= {MAX_YIELD}")
    )
    assert asked / step <= MAX_YIELD


def test_converting_costs_what_mlx_lms_does(starter: Path, tmp_path: Path) -> None:
    order = {field.name: field.default for field in quantization.FIELDS}
    ratios = []
    for number in range(PAIRS):
        out = tmp_path / f"theirs-{number}"
        bare = child("tests.benchmarks.bare_training", "convert", str(starter), str(out))[-1]["seconds"]
        shutil.rmtree(out)
        task = {
            **order,
            "task": "quantize",
            "model": "m",
            "revision": "r",
            "job": "job_bench",
            "bits": 4,
            "group_size": 64,
            "dtype": "bfloat16",
            "report": False,
            "source": str(starter),
            "source_bytes": 1,
            "models": str(tmp_path / "ours"),
            "output": f"q{number}",
            "work": str(tmp_path / "work"),
        }
        ratios.append(child("workers.trainer.main", task=task)[-1]["quantize_s"] / bare)
    value = measured(ratios)
    print("\n" + line("uniform 4-bit conversion, ours / mlx_lm.convert", value, "ratio", f"<= {MAX_CONVERT}"))
    assert value.low <= MAX_CONVERT


def test_a_scan_of_many_models_is_quick(tmp_path: Path) -> None:
    first = tiny_model.install(tmp_path, "m0")
    for number in range(1, FOLDERS):
        shutil.copytree(first, tmp_path / "models" / f"m{number}", copy_function=shutil.copy)
    assert len(local_models.scan(tmp_path)) == FOLDERS
    times = []
    for _ in range(PAIRS):
        began = time.perf_counter()
        local_models.scan(tmp_path)
        times.append(time.perf_counter() - began)
    value = measured(times)
    print("\n" + line(f"library scan of {FOLDERS} models, warm", value, "s", f"<= {MAX_SCAN_S}"))
    assert value.low <= MAX_SCAN_S
