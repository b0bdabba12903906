"""How much a smaller model differs from its baseline, on text that no calibration ever saw.

Both models read the same windows of ``texts/evaluation.txt``. Per position: the Kullback-Leibler divergence
of the two distributions (its tail tells more than its mean), whether the best token is the same, and what
the true token's probability became. Perplexity comes with its standard error, because two perplexities on a
few thousand tokens differ by chance alone.

The baseline runs first and its log-probabilities wait on disk, so only one model is in memory at a time.
On a CPU both run as dense float32 (the same numbers, 30 times faster), hence no speeds are measured there.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn

from workers.engine import platform
from workers.trainer import model_files
from workers.trainer.report import Explained

TEXTS = Path(__file__).parent / "texts"
#: Tokens per window, and at most so many windows.
WINDOW, WINDOWS = 256, 8
#: Tokens of the speed measurement.
_DECODE = 32

Step = Callable[[int, int], None]


@contextmanager
def reference_folder(work: Path) -> Iterator[Path]:
    """Where a baseline's log-probabilities wait: in the job's own folder, because they take a gigabyte and a child may
    be killed; empty at first, and gone afterwards."""
    folder = work / "reference"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Evaluation:
    """One evaluation of one baseline. ``windows`` are token ids; ``folder`` holds one file per window."""

    source: Path
    device: str
    folder: Path
    windows: np.ndarray
    digest: str
    _baseline: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, source: Path, device: str, folder: Path) -> Evaluation:
        text = (TEXTS / "evaluation.txt").read_text(encoding="utf-8")
        ids = model_files.text_ids(source, text)
        window = min(model_files.window(source, WINDOW), len(ids))
        count = min(WINDOWS, len(ids) // window)
        windows = np.array(ids[: count * window], dtype=np.int32).reshape(count, window)
        return cls(source, device, folder, windows, hashlib.sha256(text.encode()).hexdigest())

    def measure_reference(self, step: Step) -> None:
        """Run the baseline and keep its log-probabilities."""
        began = time.perf_counter()
        model = self._load(self.source)
        load_s = time.perf_counter() - began
        losses: list[np.ndarray] = []
        for index, window in enumerate(self.windows):
            step(index, len(self.windows))
            logs = _log_probabilities(model, window)
            losses.append(_true_token_losses(logs, window))
            if not np.isfinite(losses[-1]).all():
                raise Explained(
                    "not_finite", "What the original says is no number: its weights, or what comes of them, are spoiled."
                )
            self._file(index).write_bytes(logs.astype(np.float32).tobytes())
        self._baseline = {"losses": np.concatenate(losses), "load_s": load_s, **self._speeds(model)}
        del model
        platform.give_memory_back()

    def compare(self, folder: Path, step: Step) -> dict[str, Any]:
        """Run the new model over the same windows; answers every figure of the report."""
        began = time.perf_counter()
        model = self._load(folder)
        load_s = time.perf_counter() - began
        divergences, losses, same, flips = [], [], [], [0, 0]
        for index, window in enumerate(self.windows):
            step(index, len(self.windows))
            ours = _log_probabilities(model, window)
            theirs = np.fromfile(self._file(index), np.float32).reshape(len(window), -1)
            losses.append(_true_token_losses(ours, window))
            if not np.isfinite(losses[-1]).all():
                message = (
                    "What the new model says is no number, so nothing was published: its dtype may be too narrow for a weight."
                )
                raise Explained("not_finite", message)
            likely = np.exp(theirs)
            with np.errstate(invalid="ignore"):  # what could never come has no part in it
                divergences.append(np.where(likely > 0, likely * (theirs - ours), 0).sum(axis=-1))
            best, before = ours.argmax(-1), theirs.argmax(-1)
            same.append(best == before)
            right, was_right = best[:-1] == window[1:], before[:-1] == window[1:]
            flips[0] += int((was_right & ~right).sum())
            flips[1] += int((~was_right & right).sum())
        divergence = np.maximum(np.concatenate(divergences), 0)
        loss, base = np.concatenate(losses), self._baseline["losses"]
        p50, p99, p999 = np.quantile(divergence, (0.5, 0.99, 0.999))
        perplexity, error = _perplexity(loss)
        base_perplexity, base_error = _perplexity(base)
        speeds = self._speeds(model)
        return {
            "tokens": int(loss.size),
            "evaluation_sha256": self.digest,
            "calibration_sha256": None,
            "perplexity": {
                "baseline": base_perplexity,
                "baseline_se": base_error,
                "quantized": perplexity,
                "quantized_se": error,
                "ratio": _rounded(math.exp(float((loss - base).mean()))),
            },
            "kl": {
                "mean": _rounded(divergence.mean()),
                "median": _rounded(p50),
                "p99": _rounded(p99),
                "p999": _rounded(p999),
                "max": _rounded(divergence.max()),
            },
            "same_top": _rounded(np.concatenate(same).mean()),
            "flips": {"right_to_wrong": flips[0], "wrong_to_right": flips[1]},
            "rms_probability_change": _rounded(math.sqrt(float(((np.exp(-loss) - np.exp(-base)) ** 2).mean()))),
            "load_s": {"baseline": _rounded(self._baseline["load_s"]), "quantized": _rounded(load_s)},
            "prefill_tokens_per_s": {"baseline": self._baseline["prefill"], "quantized": speeds["prefill"]},
            "decode_tokens_per_s": {"baseline": self._baseline["decode"], "quantized": speeds["decode"]},
            "speed_note": speeds["note"],
        }

    def _load(self, folder: Path) -> nn.Module:
        dense = self.device == "cpu"
        model, _ = model_files.load(folder, dense=dense, dtype="float32" if dense else None)
        mx.eval(model.parameters())
        return model

    def _speeds(self, model: nn.Module) -> dict[str, Any]:
        if self.device == "cpu":
            return {"prefill": None, "decode": None, "note": "not measured here: a CPU runs unpacked weights"}
        return {**measure_speed(model, self.windows[0]), "note": ""}

    def _file(self, index: int) -> Path:
        return self.folder / f"{index}.f32"


def measure_speed(model: nn.Module, window: np.ndarray) -> dict[str, float]:
    """Tokens per second of reading one window and of writing after it, greedily."""
    from mlx_lm.models.cache import make_prompt_cache

    tokens = mx.array(window)[None]
    mx.eval(model(tokens, cache=make_prompt_cache(model)))  # warm up: kernels are built on first use
    cache = make_prompt_cache(model)
    began = time.perf_counter()
    logits = model(tokens, cache=cache)
    mx.eval(logits)
    prefill = time.perf_counter() - began
    began = time.perf_counter()
    for _ in range(_DECODE):
        logits = model(logits[:, -1:].argmax(-1), cache=cache)
        mx.eval(logits)
    decode = time.perf_counter() - began
    return {"prefill": round(window.size / prefill, 1), "decode": round(_DECODE / decode, 1)}


def _log_probabilities(model: nn.Module, window: np.ndarray) -> np.ndarray:
    logits = model(mx.array(window)[None])[0].astype(mx.float32)
    logs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return np.array(logs)


def _true_token_losses(logs: np.ndarray, window: np.ndarray) -> np.ndarray:
    return -logs[np.arange(window.size - 1), window[1:]].astype(np.float64)


def _perplexity(losses: np.ndarray) -> tuple[float, float]:
    """exp of the mean loss, and its standard error by the delta method."""
    value = math.exp(min(float(losses.mean()), 700.0))
    return _rounded(value), _rounded(value * float(losses.std(ddof=1)) / math.sqrt(losses.size))


def _rounded(value: float) -> float:
    """Six significant digits: more would pretend a precision the sample does not have. Finite by JSON's rules."""
    value = float(value)
    return float(f"{value:.6g}") if math.isfinite(value) else 1.7e308
