"""mlx-lm's quantizations that look at data: AWQ, GPTQ, DWQ and dynamic, run offline on our calibration text.

They are called as functions with windows of token ids, because their command lines fetch text from the
network. None of them can be stopped or watched: what they have is a progress bar around each of their loops.
Ours takes its place, and asks the supervisor between two blocks, layers or batches.

Every method gives the same: a model whose layers are packed, and a ``quantization`` entry that says how each is.
On a CPU they work in float32; what is kept in floating point is brought to the order's type at the end.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from mlx import nn

from workers.engine.loading import import_light_mlx_lm
from workers.trainer import allocation, model_files, report
from workers.trainer.quality import TEXTS
from workers.trainer.report import Explained
from workers.trainer.unpacked import unpacked

Step = Callable[[int, int], None]
#: Tokens of a calibration window, and at most so many windows.
LENGTH, WINDOWS = 128, 32
#: Scales and clips AWQ tries for each layer: mlx-lm's 20 on Metal, fewer where each costs seconds.
_GRID = {"cpu": 6}
_FULL_GRID = 20
#: DWQ: windows kept for validation, passes over the others, rows of a step, and the peak learning rate.
_DWQ_VALID, _DWQ_EPOCHS, _DWQ_BATCH, _DWQ_RATE = 4, 2, 2, 1e-5
_SEED = 42
#: Width of what GPTQ itself cannot pack (embeddings), as mlx-lm has it.
_GPTQ_REST = 6
SENSITIVITIES = "dynamic.json"


@dataclass(frozen=True)
class Calibration:
    """Windows of token ids [count, LENGTH], and what text they were cut from."""

    windows: mx.array
    sha256: str

    @classmethod
    def of(cls, source: Path) -> Calibration:
        text = (TEXTS / "calibration.txt").read_text(encoding="utf-8")
        ids = model_files.text_ids(source, text)
        length = min(model_files.window(source, LENGTH), len(ids))
        count = min(len(ids) // length, WINDOWS)
        windows = mx.array(ids[: count * length]).reshape(count, length)
        return cls(windows, hashlib.sha256(text.encode()).hexdigest())


class _Bar:
    """Stands where mlx-lm draws a progress bar; ``step`` is asked before each item and may raise a stop."""

    step: Step = staticmethod(lambda index, total: None)

    def __init__(self, items: Any, *, total: int | None = None, **_: Any):
        self._items = items
        self._total = total if total is not None else len(items)

    def __iter__(self) -> Iterator[Any]:
        for index, item in enumerate(self._items):
            type(self).step(min(index, self._total), self._total)
            yield item

    def set_description(self, *_: Any, **__: Any) -> None:
        """A bar says something beside itself; the job's events have it already."""

    @staticmethod
    def write(text: str) -> None:
        report.emit("log", line=" ".join(text.split()))


def awq(model: nn.Module, task: dict[str, Any], data: Calibration, step: Step) -> dict[str, Any]:
    """Scale the inputs that matter up before packing, and clip outliers, block by block."""
    module = _watched("awq", step)
    _require_widths(model, task["group_size"])
    family = module.AWQ_MODEL_CONFIGS.get(task["architecture"])
    if family is None:
        raise Explained("unsupported_execution", f"AWQ does not know the architecture {task['architecture']}.")
    grid = _GRID.get(task["device"], _FULL_GRID)
    module.awq_quantize(
        model,
        data.windows,
        family,
        group_size=task["group_size"],
        bits=task["bits"],
        embed_group_size=32,
        embed_bits=max(task["bits"], 4),
        n_grid=grid,
    )
    return {"grid": grid}


def gptq(model: nn.Module, task: dict[str, Any], data: Calibration, step: Step) -> dict[str, Any]:
    """Round column by column and let the columns still to come make up for the error."""
    _require_widths(model, task["group_size"])
    group = task["group_size"]
    _watched("gptq", step).gptq_quantize(model, data.windows, task["bits"], group, _GPTQ_REST, group, batch_size=4)
    return {"rest_bits": _GPTQ_REST}


def dwq(model: nn.Module, task: dict[str, Any], data: Calibration, step: Step) -> dict[str, Any]:
    """Train scales and offsets of a uniformly packed copy until it says what the original says."""
    module = _watched("dwq", step)
    teacher = copy.deepcopy(model)
    scheme = {"group_size": task["group_size"], "bits": task["bits"]}
    nn.quantize(model, **scheme, class_predicate=lambda _, layer: _fits(layer, task["group_size"]))
    mx.eval(model.parameters())
    model.freeze()  # mlx-lm then frees scales and offsets, and nothing else
    before = dict(_trained(model))
    ids: Any = data.windows.tolist()
    rows = [(window, 0) for window in ids]
    held, learned = rows[:_DWQ_VALID], rows[_DWQ_VALID:] * _DWQ_EPOCHS
    if len(learned) < _DWQ_BATCH:
        raise Explained("calibration_too_short", "The calibration text gives this model too few windows for DWQ.")
    with unpacked(model) if task["device"] == "cpu" else nullcontext():
        start = _distance(model, teacher, data.windows[:_DWQ_VALID])
        module.dwq_quantize(
            model,
            lambda batch, index, split: teacher(batch),
            optim.Adam(learning_rate=_DWQ_RATE, bias_correction=True),
            learned,
            held,
            batch_size=_DWQ_BATCH,
            max_seq_length=LENGTH + 1,
            seed=_SEED,
            dtype=getattr(mx, task["work_dtype"]),
        )
        end = _distance(model, teacher, data.windows[:_DWQ_VALID])
    kept = end < start
    if not kept:
        report.emit("log", line=f"Training moved away from the original ({start:.5f} to {end:.5f}): the packed weights stay.")
        model.load_weights(list(before.items()), strict=False)
    model.eval()
    return {"kl_before": _short(start), "kl_after": _short(end), "kept": kept}


def dynamic(model: nn.Module, task: dict[str, Any], data: Calibration, step: Step) -> dict[str, Any]:
    """Give the layers whose gradient says that precision matters the higher of two widths."""
    module = _watched("dynamic_quant", step)
    low, high = task["candidate_bits"][0], task["candidate_bits"][-1]
    group = task["group_size"]
    _require_widths(model, group)
    known = Path(task["work"]) / SENSITIVITIES
    if known.exists():
        found: list[list[Any]] = json.loads(known.read_text())
    else:
        found = module.estimate_sensitivities(model, data.windows, low, group, high, group, batch_size=2)
        known.parent.mkdir(parents=True, exist_ok=True)
        private = known.with_suffix(".new")
        private.write_text(json.dumps(found))
        private.replace(known)
    by_layer: dict[str, float] = dict(found)
    step(1, 2)
    # mlx-lm's own search weighs a packed copy, whose scales are twice as large here as they will be in the file.
    sizes = {path: int(layer.weight.size) for path, layer in model.named_modules() if path in by_layer}
    raised = allocation.raised(by_layer, sizes, (low, high), task["target_bpw"], 32 / group)

    def chosen(path: str, layer: nn.Module) -> bool | dict[str, int]:
        if not hasattr(layer, "to_quantized"):
            return False
        return {"group_size": group, "bits": high} if path in raised else True

    nn.quantize(model, group_size=group, bits=low, class_predicate=chosen)
    mx.eval(model.parameters())
    return {"layers_by_bits": {low: len(by_layer) - len(raised), high: len(raised)}, "target_bpw": task["target_bpw"]}


METHODS: dict[str, Callable[[nn.Module, dict[str, Any], Calibration, Step], dict[str, Any]]] = {
    "awq": awq,
    "gptq": gptq,
    "dwq": dwq,
    "dynamic": dynamic,
}


def entries(model: nn.Module, default: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The ``quantization`` of config.json for a model as it is now, and the layers left in full precision."""
    said: dict[str, Any] = dict(default)
    whole = []
    for path, layer in model.named_modules():
        if hasattr(layer, "bits") and hasattr(layer, "group_size"):
            own = {"group_size": layer.group_size, "bits": layer.bits, "mode": getattr(layer, "mode", "affine")}
            if own != default:
                said[path] = own
        elif hasattr(layer, "to_quantized"):
            said[path] = False
            whole.append(path)
    return said, whole


def _watched(name: str, step: Step) -> Any:
    """One of mlx-lm's modules, with our bar instead of its own."""
    import_light_mlx_lm()
    module: Any = importlib.import_module(f"mlx_lm.quant.{name}")
    _Bar.step = staticmethod(step)
    module.tqdm = _Bar
    return module


def _fits(layer: nn.Module, group_size: int) -> bool:
    return hasattr(layer, "to_quantized") and layer.weight.shape[-1] % group_size == 0


def _require_widths(model: nn.Module, group_size: int) -> None:
    """
    Raises:
        Explained: a layer's width is no multiple of the group size, which these methods cannot leave out.
    """
    for path, layer in model.named_modules():
        if hasattr(layer, "to_quantized") and not _fits(layer, group_size):
            shape = list(layer.weight.shape)
            raise Explained("group_size_unsuitable", f"Group size {group_size} does not divide the width of {path} {shape}.")


def _trained(model: nn.Module) -> Sequence[tuple[str, mx.array]]:
    from mlx.utils import tree_flatten

    flat: Any = tree_flatten(model.parameters())
    return [(name, value) for name, value in flat if name.endswith((".scales", ".biases"))]


def _distance(model: nn.Module, teacher: nn.Module, windows: mx.array) -> float:
    """Mean divergence of the copy from the original."""
    total = 0.0
    for window in windows:
        theirs, ours = (_logs(one, window) for one in (teacher, model))
        found: Any = (mx.exp(theirs) * (theirs - ours)).sum(-1).mean().item()
        total += float(found)
    return total / len(windows)


def _logs(model: nn.Module, window: mx.array) -> mx.array:
    logits = model(window[None])[0].astype(mx.float32)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def _short(value: float) -> float:
    return float(f"{value:.6g}")
