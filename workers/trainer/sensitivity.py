"""How much each layer's precision matters, measured one layer at a time on calibration text.

For every layer and candidate width: put the weights as they would be after quantizing in place, read the
calibration windows, take the mean Kullback-Leibler divergence from the untouched model, put the weights back.
Blocks before the layer's own are not run again (replay.py), which halves the pass.
Each result is a line in a file as soon as it is known, so a pass that dies goes on with the next one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn

from workers.trainer import model_files
from workers.trainer.allocation import Layer
from workers.trainer.quality import TEXTS
from workers.trainer.replay import Replay

#: Windows of calibration text, and their length in tokens: on a CPU, where each divergence costs about a second, fewer.
WINDOWS, LENGTH = 2, 128
_LENGTHS = {"cpu": 48}
FILE = "sensitivity.jsonl"


def calibration_windows(source: Path, device: str = "") -> tuple[list[mx.array], str]:
    """Token windows, read together as one batch, and the text's hash. The text is not the evaluation's."""
    text = (TEXTS / "calibration.txt").read_text(encoding="utf-8")
    ids = model_files.text_ids(source, text)
    length = model_files.window(source, _LENGTHS.get(device, LENGTH))
    chunks = [ids[start : start + length] for start in range(0, max(len(ids) - length + 1, 1), length)]
    order = np.random.Generator(np.random.PCG64(42)).permutation(len(chunks))[:WINDOWS]
    return [mx.array([chunks[index] for index in sorted(order.tolist())])], hashlib.sha256(text.encode()).hexdigest()


def measure(
    model: nn.Module,
    layers: Sequence[tuple[str, nn.Module]],
    widths: Sequence[int],
    group_size: int,
    windows: Sequence[mx.array],
    work: Path,
    step: Callable[[int, int], None],
) -> list[Layer]:
    """Divergence of every layer at every width."""
    work.mkdir(parents=True, exist_ok=True)
    known = _known(work / FILE)
    replay = Replay(model, windows)
    reference = [_logs(replay.logits(index, "")) for index in range(len(windows))]
    likely = [mx.exp(logs) for logs in reference]
    mx.eval(likely)
    measured = []
    with (work / FILE).open("a") as out:
        for index, (path, module) in enumerate(layers):
            step(index, len(layers))
            divergence = {}
            for bits in widths:
                if (path, bits) not in known:
                    known[path, bits] = _divergence(replay, path, module, bits, group_size, reference, likely)
                    out.write(json.dumps({"layer": path, "bits": bits, "kl": known[path, bits]}) + "\n")
                    out.flush()
                    os.fsync(out.fileno())
                value = known[path, bits]
                divergence[bits] = math.nan if value is None else value
            measured.append(Layer(path, int(module.weight.size), divergence))
    return measured


def _divergence(
    replay: Replay,
    path: str,
    module: nn.Module,
    bits: int,
    group_size: int,
    reference: Sequence[mx.array],
    likely: Sequence[mx.array],
) -> float | None:
    """``likely`` is the exponential of ``reference``, which is the same for every layer. None when it is not a number."""
    original = module.weight
    packed, scales, biases = mx.quantize(original, group_size=group_size, bits=bits)
    module.weight = mx.dequantize(packed, scales, biases, group_size=group_size, bits=bits).astype(original.dtype)
    total = 0.0
    for window, before in enumerate(reference):
        after = _logs(replay.logits(window, path))
        found: Any = (likely[window] * (before - after)).sum(-1).mean().item()
        total += float(found)
    module.weight = original
    mean = total / len(reference)
    return mean if math.isfinite(mean) else None


def _logs(logits: mx.array) -> mx.array:
    logits = logits.reshape(-1, logits.shape[-1]).astype(mx.float32)
    logs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    mx.eval(logs)
    return logs


def _known(path: Path) -> dict[tuple[str, int], float | None]:
    """What an earlier attempt measured; a line cut off by its death is ignored and cut away."""
    found: dict[tuple[str, int], float | None] = {}
    if not path.exists():
        return found
    whole = 0
    for line in path.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        entry = json.loads(line)
        found[entry["layer"], entry["bits"]] = entry["kl"]
        whole += len(line)
    os.truncate(path, whole)
    return found
