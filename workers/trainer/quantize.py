"""Task ``quantize``: a model directory becomes a smaller one, published only after it was loaded and measured.

Layer by layer, so that progress, cancellation and yielding are as fine as a layer. A layer whose input
width the group size does not divide stays in full precision and is reported. Nothing is visible under the
new name until the written directory has been read back.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_unflatten

from mlxplatform.library import publication
from workers.engine import platform
from workers.trainer import allocation, learned, model_files, quality, report, sensitivity
from workers.trainer.control import Control
from workers.trainer.report import Explained

REPORT = "quantization_report.json"
#: Shares of the whole for the progress bar: reference pass, layers, writing, checking.
_REFERENCE, _LAYERS, _WRITE, _CHECK = 0.30, 0.30, 0.10, 0.28

#: What one layer gets: parameters for quantize, or None to stay as it is.
Choice = Callable[[str, nn.Module], dict[str, Any] | None]


def run(task: dict[str, Any], control: Control) -> dict[str, Any]:
    """Quantize ``task["source"]`` into ``task["models"]/task["output"]``."""
    with quality.reference_folder(Path(task["work"])) as reference:
        return _quantize(task, control, reference)


def _quantize(task: dict[str, Any], control: Control, reference: Path) -> dict[str, Any]:
    source, models = Path(task["source"]), Path(task["models"])
    # Lazy weights: nothing is read yet, but every layer's shape is known, so a hopeless order ends here.
    model, config = model_files.load(source, dense=True, dtype=task["dtype"])
    _require_a_layer(model, task["group_size"])
    evaluation = None
    if task["report"]:
        report.stage("reference", 0.0, "Measuring the original.")
        evaluation = quality.Evaluation.of(source, task["device"], reference)
        evaluation.measure_reference(_share(control, "reference", 0.0, _REFERENCE))
    started = time.perf_counter()
    weights_before, count = model_files.tensor_bytes(model), model_files.weight_count(model)
    calibration, mixed, learning = None, None, None
    if task.get("method") in learned.METHODS:
        del model
        model, kept, learning, calibration = _by_learning(task, source, config, control)
    else:
        choice = _choice(task, model)
        if task["target_bpw"] is not None:
            choice, mixed = _by_sensitivity(task, source, control)
            calibration = mixed["calibration_sha256"]
        kept = quantize_layers(model, config, choice, task, _share(control, "quantize", _REFERENCE, _LAYERS))
    config["torch_dtype"] = task["dtype"]
    size = model_files.tensor_bytes(model)
    at = _REFERENCE + _LAYERS
    report.stage("write", at, "Writing.")
    with publication.private_directory(models) as folder:
        model_files.save(folder, source, model, config)
        del model
        seconds = time.perf_counter() - started
        result: dict[str, Any] = {
            "model": task["output"],
            "baseline": task["model"],
            "baseline_revision": task["revision"],
            "scheme": _scheme(task),
            "bytes": size,
            "baseline_bytes": task["source_bytes"],
            "bits_per_weight": round(size * 8 / count, 4),
            "baseline_bits_per_weight": round(weights_before * 8 / count, 4),
            "kept_layers": kept,
            "mixed": mixed,
            "learning": learning,
            "quantize_s": round(seconds, 3),
            "peak_bytes": mx.get_peak_memory(),
        }
        if evaluation is not None:
            at += _WRITE
            report.stage("check", at, "Reading the new model back and comparing.")
            result["quality"] = evaluation.compare(folder, _share(control, "check", at, _CHECK))
            result["quality"]["calibration_sha256"] = calibration
        else:
            _read_back(folder)
        control.between_steps()
        (folder / REPORT).write_text(json.dumps(result, indent=1) + "\n")
        publication.write_provenance(folder, kind="quantize", base=task["model"], base_revision=task["revision"], job=task["job"])
        try:
            publication.publish(folder, models, task["output"])
        except publication.NameTaken:
            raise Explained("name_taken", f"There is a model called {task['output']} already; nothing was changed.") from None
    report.stage("publish", 1.0, "Published.")
    return result


def quantize_layers(
    model: nn.Module,
    config: dict[str, Any],
    choice: Choice,
    scheme: dict[str, Any],
    step: Callable[[int, int], None],
) -> list[dict[str, Any]]:
    """Quantize in place and write ``config["quantization"]``; answers the layers left in full precision, with why."""
    default = {"group_size": scheme["group_size"], "bits": scheme["bits"], "mode": scheme["mode"]}
    entries: dict[str, Any] = dict(default)
    kept: list[dict[str, Any]] = []
    layers = _layers(model)
    for index, (path, module) in enumerate(layers):
        step(index, len(layers))
        width, wanted = module.weight.shape[-1], choice(path, module)
        if wanted is None or width % wanted["group_size"]:
            entries[path] = False
            why = "its architecture or recipe leaves it"
            if wanted is not None:
                why = f"group size {wanted['group_size']} does not divide its width {width}"
            kept.append({"layer": path, "shape": list(module.weight.shape), "reason": why})
            report.emit("log", line=f"{path} {list(module.weight.shape)} stays in full precision: {why}")
            continue
        if wanted != default:
            entries[path] = wanted
        packed = module.to_quantized(**wanted)
        mx.eval(packed.parameters())
        model.update_modules(tree_unflatten([(path, packed)]))
        mx.clear_cache()
    config["quantization"] = config["quantization_config"] = entries
    return kept


def _layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Layers that could be packed, in the order the model has them."""
    found = [(path, module) for path, module in model.named_modules() if hasattr(module, "to_quantized")]
    return sorted(
        found, key=lambda item: [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in item[0].split(".")]
    )


def _require_a_layer(model: nn.Module, group_size: int) -> None:
    """
    Raises:
        Explained: no layer's width is a multiple of the group size.
    """
    layers = _layers(model)
    if not any(module.weight.shape[-1] % group_size == 0 for _, module in layers):
        sizes = ", ".join(f"{path} {list(module.weight.shape)}" for path, module in layers[:3]) or "there is none"
        raise Explained("nothing_to_quantize", f"No layer fits group size {group_size} (first layers: {sizes}).")


def _choice(task: dict[str, Any], model: nn.Module) -> Choice:
    scheme = {"group_size": task["group_size"], "bits": task["bits"], "mode": task["mode"]}
    if task.get("recipe"):
        from mlx_lm.convert import mixed_quant_predicate_builder

        try:
            predicate = mixed_quant_predicate_builder(task["recipe"], model, task["group_size"])
        except ValueError as error:
            raise Explained("recipe_unsuitable", "This model's layers are not named as the mixed recipes expect.") from error

        def by_recipe(path: str, module: nn.Module) -> dict[str, Any] | None:
            wanted = predicate(path, module)
            return dict(wanted) if isinstance(wanted, dict) else scheme if wanted else None

        return by_recipe
    own = getattr(model, "quant_predicate", None)

    def uniform(path: str, module: nn.Module) -> dict[str, Any] | None:
        # Architectures name layers that must not be quantized (routers), or that need more bits.
        wanted = True if own is None else own(path, module)
        if isinstance(wanted, dict):
            return {**scheme, **wanted} if task["mode"] == "affine" else scheme
        return scheme if wanted else None

    return uniform


def _by_learning(
    task: dict[str, Any], source: Path, config: dict[str, Any], control: Control
) -> tuple[nn.Module, list[dict[str, Any]], dict[str, Any], str]:
    """Pack a copy by one of mlx-lm's methods; answers it, the layers left whole, what the method says, and its text's hash."""
    task["work_dtype"] = "float32" if task["device"] == "cpu" else task["dtype"]
    task["architecture"] = config["model_type"]
    model, _ = model_files.load(source, dense=True, dtype=task["work_dtype"])
    mx.eval(model.parameters())
    data = learned.Calibration.of(source)
    report.stage("calibrate", _REFERENCE, f"{task['method'].upper()} on {data.windows.size} tokens of calibration text.")
    step = _share(control, "quantize", _REFERENCE, _LAYERS)
    facts = learned.METHODS[task["method"]](model, task, data, step)
    model_files.cast(model, task["dtype"])
    default = {"group_size": task["group_size"], "bits": task["bits"], "mode": task["mode"]}
    config["quantization"], whole = learned.entries(model, default)
    config["quantization_config"] = config["quantization"]
    shapes = {path: list(module.weight.shape) for path, module in _layers(model)}
    kept = [{"layer": path, "shape": shapes[path], "reason": "group size does not divide its width"} for path in whole]
    return model, kept, {"method": task["method"], "tokens": data.windows.size, **facts}, data.sha256


def _by_sensitivity(task: dict[str, Any], source: Path, control: Control) -> tuple[Choice, dict[str, Any]]:
    """Measure the layers of a dense copy, and spread the bits; answers the choice and what to report of it."""
    model, _ = model_files.load(source, dense=True, dtype="float32" if task["device"] == "cpu" else task["dtype"])
    mx.eval(model.parameters())
    group, widths = task["group_size"], task["candidate_bits"]
    layers = [(path, module) for path, module in _layers(model) if module.weight.shape[-1] % group == 0]
    windows, digest = sensitivity.calibration_windows(source, task["device"])
    report.stage("sensitivity", _REFERENCE, f"Measuring {len(layers)} layers.")
    step = _share(control, "sensitivity", _REFERENCE, 0.0)
    measured = sensitivity.measure(model, layers, widths, group, windows, Path(task["work"]), step)
    overhead = 32 / group  # a 16-bit scale and a 16-bit bias for each group
    bits = allocation.allocate(measured, widths, task["target_bpw"], overhead)
    counts = {width: sum(1 for chosen in bits.values() if chosen == width) for width in sorted(widths)}
    task["bits"] = min(bits.values())
    del model
    platform.give_memory_back()

    def chosen(path: str, module: nn.Module) -> dict[str, Any] | None:
        return {"group_size": group, "bits": bits.get(path, task["bits"]), "mode": "affine"}

    return chosen, {
        "target_bpw": task["target_bpw"],
        "achieved_bpw": round(allocation.average(bits, measured, overhead), 4),
        "candidate_bits": sorted(widths),
        "layers_by_bits": counts,
        "bits": bits,
        "kl": {layer.name: _finite(layer.divergence[bits[layer.name]]) for layer in measured},
        "calibration_sha256": digest,
    }


def _finite(value: float) -> float:
    """JSON has no NaN; a divergence nobody could compute counts as a very large one."""
    return float(f"{value:.6g}") if math.isfinite(value) else 1e9


def _scheme(task: dict[str, Any]) -> dict[str, Any]:
    return {
        name: task[name]
        for name in ("method", "mode", "bits", "group_size", "recipe", "target_bpw", "dtype")
        if task.get(name) is not None
    }


def _share(control: Control, name: str, start: float, share: float) -> Callable[[int, int], None]:
    """A step callback: asks for wishes, and tells progress at most a hundred times."""
    told = -1

    def step(index: int, total: int) -> None:
        nonlocal told
        control.between_steps()
        hundredth = 100 * index // max(total, 1)
        if hundredth != told:
            told = hundredth
            report.stage(name, start + share * index / max(total, 1), step=index, total=total)

    return step


def _read_back(folder: Path) -> None:
    model, _ = model_files.load(folder)
    mx.eval(model.parameters())
    model_files.require_numbers(model)
