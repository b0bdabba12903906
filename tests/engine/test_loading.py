"""The quick way of loading against mlx-lm's ordinary one, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.system.stack import ROOT
from workers.engine.loading import CannotLoad, read_config

_QUICK = """
import sys
from pathlib import Path
from workers.engine import platform
platform.prepare(threads=1)
from workers.engine.loading import load
model = load(Path(sys.argv[1]), "float32", "cpu").model
"""
_ORDINARY = """
import sys
from mlx_lm import load
import mlx.core as mx
model, _ = load(sys.argv[1])
model.set_dtype(mx.float32)
"""
_REPORT = """
import json
import mlx.core as mx
logits = model(mx.array([[5, 6, 7, 8]]))[0, -1]
print(json.dumps({"logits": logits.tolist(), "heavy": [n for n in ("transformers", "huggingface_hub") if n in sys.modules]}))
"""


def run(code: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", code + _REPORT, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def test_the_quick_way_gives_the_same_model_without_what_takes_long_to_import(tiny_model_dir: Path) -> None:
    quick, ordinary = run(_QUICK, tiny_model_dir), run(_ORDINARY, tiny_model_dir)
    assert quick["logits"] == pytest.approx(ordinary["logits"], abs=1e-4)
    assert quick["heavy"] == [] and ordinary["heavy"]


def test_the_child_does_without_what_its_log_could_be_coloured_with() -> None:
    code = (
        "import sys, workers.engine.main; print({'rich', 'twisted'} & set(sys.modules)); import rich.console, twisted.python.log"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "set()"), done.stderr


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_directory_without_a_usable_configuration_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(CannotLoad) as refused:
        read_config(tmp_path)
    assert str(tmp_path) not in str(refused.value)
