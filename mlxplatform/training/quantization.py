"""Orders to quantize: which schemes exist, what an order means, and what it is refused for.

Everything that can be known without reading weights is decided here, before a job exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import transaction

from mlxplatform.http.fields import Field, invalid, read
from mlxplatform.inference.contract import Refusal
from mlxplatform.inference.placement import model_not_found
from mlxplatform.jobs import service
from mlxplatform.jobs.models import Job
from mlxplatform.library import local_models, names

KIND = "quantize"


@dataclass(frozen=True)
class Mode:
    """What a quantization mode allows; the first of each is its default."""

    bits: tuple[int, ...]
    group_sizes: tuple[int, ...]


MODES = {
    "affine": Mode((4, 2, 3, 5, 6, 8), (64, 32, 128)),
    "mxfp4": Mode((4,), (32,)),
    "nvfp4": Mode((4,), (16,)),
    "mxfp8": Mode((8,), (32,)),
}
#: Layer recipes and the width they start from.
RECIPES = {"mixed_2_6": 2, "mixed_3_4": 3, "mixed_3_6": 3, "mixed_4_6": 4}

#: Architectures whose blocks mlx-lm's AWQ knows.
AWQ_ARCHITECTURES = frozenset(
    {"llama", "mistral", "ministral3", "mistral3", "llava", "qwen2", "qwen3", "gemma3_text", "gemma3", "deepseek_v2"}
)


@dataclass(frozen=True)
class Method:
    """How bits are found. ``bits`` it can pack to; ``copies`` of the dense model it holds at once."""

    bits: tuple[int, ...]
    copies: int
    doc: str


#: plain rounds each weight to the nearest; the others are mlx-lm's, and look at calibration text first.
METHODS = {
    "plain": Method((4, 2, 3, 5, 6, 8), 1, "rounds each weight"),
    "awq": Method((4, 2, 3, 5, 6, 8), 2, "scales inputs that matter, clips outliers"),
    "gptq": Method((4, 2, 8), 3, "lets later columns make up for earlier rounding"),
    "dwq": Method((4, 2, 3, 5, 6), 4, "trains scales until the copy says what the original says"),
    "dynamic": Method((4, 2, 3, 5, 6, 8), 4, "two widths, by gradient; needs target_bpw"),
}

FIELDS = (
    Field("model", "text", required=True, high=128, doc="Id of the model to quantize"),
    Field("output", "text", high=128, doc="Name of the new model; made from the old one's when absent"),
    Field("method", "text", "plain", choices=tuple(METHODS), doc="How weights are rounded; all but plain read calibration text"),
    Field("mode", "text", "affine", choices=tuple(MODES), doc="How weights are packed"),
    Field("bits", "int", doc="Bits per weight; the mode's default when absent"),
    Field("group_size", "int", doc="Weights that share a scale; the mode's default when absent"),
    Field("recipe", "text", choices=tuple(RECIPES), doc="More bits for sensitive layers by a fixed pattern; affine only"),
    Field("target_bpw", "float", low=2, high=9, doc="Mixed precision by measured sensitivity: average bits per weight to reach"),
    Field("candidate_bits", "numbers", doc="Widths mixed precision chooses from; 4 and 8"),
    Field("dtype", "text", choices=("bfloat16", "float16", "float32"), doc="Of scales and of what stays unpacked; bfloat16"),
    Field("report", "bool", True, doc="Compare the result with the original on held-out text"),
)
#: Names of the older system for the same fields.
ALIASES = {"model_id": "model", "src_dir": "model", "out_dir": "output", "name": "output"}


def check(body: dict[str, Any]) -> dict[str, Any]:
    """The complete configuration of a job.

    Raises:
        Refusal: 400 a field is wrong or two do not go together, 404 no such model, 409 the name is taken.
    """
    body = dict(body)
    for old, new in ALIASES.items():
        if old in body:
            value = body.pop(old)
            body.setdefault(new, value)
    if isinstance(body.get("output"), str):
        body["output"] = body["output"].removeprefix("models/")
    order = read(body, FIELDS, ignore=("idempotency_key",))
    _settle_scheme(order)
    model = local_models.find(order["model"], settings.HOME)
    if model is None:
        raise model_not_found(order["model"])
    if model.kind != "chat":
        raise invalid("model", "Only chat models can be quantized.")
    if model.obstacle:
        raise invalid("model", f"{model.id} cannot be quantized: {model.obstacle}.")
    if order["method"] == "awq" and model.architecture not in AWQ_ARCHITECTURES:
        known = ", ".join(sorted(AWQ_ARCHITECTURES))
        message = f"awq does not know the architecture {model.architecture}; it knows {known}."
        raise Refusal(501, "unsupported_execution", message, param="method")
    order["output"] = order["output"] or default_name(model.id, order)
    names.check(order["output"], "output")
    order["dtype"] = order["dtype"] or ("bfloat16" if model.dtype in {"float32", "unknown"} else model.dtype)
    order["revision"] = model.revision
    return order


def _settle_scheme(order: dict[str, Any]) -> None:
    mode = MODES[order["mode"]]
    if order["method"] != "plain":
        _settle_learned(order)
    if order["recipe"]:
        if order["mode"] != "affine":
            raise invalid("recipe", "recipe goes with mode affine only.")
        if order["bits"] not in {None, RECIPES[order["recipe"]]}:
            raise invalid("bits", f"bits is decided by the recipe {order['recipe']}; leave it out.")
        order["bits"] = RECIPES[order["recipe"]]
    if order["target_bpw"] is not None or order["candidate_bits"] is not None:
        _settle_mixed(order)
    bits = tuple(width for width in METHODS[order["method"]].bits if width in mode.bits)
    for name, allowed in (("bits", bits), ("group_size", mode.group_sizes)):
        if order[name] is None:
            order[name] = allowed[0]
        elif order[name] not in allowed:
            owner = f"mode {order['mode']}" if order["method"] == "plain" else f"method {order['method']}"
            raise invalid(name, f"{name} must be one of {', '.join(map(str, sorted(allowed)))} for {owner}.")


def _settle_learned(order: dict[str, Any]) -> None:
    method = order["method"]
    if order["mode"] != "affine":
        raise invalid("mode", f"method {method} goes with mode affine only.")
    if order["recipe"] is not None:
        raise invalid("recipe", f"recipe does not go with method {method}.")
    if method == "dynamic" and order["target_bpw"] is None:
        raise Refusal(400, "missing_required_parameter", "method dynamic needs target_bpw.", param="target_bpw")
    if method != "dynamic":
        for name in ("target_bpw", "candidate_bits"):
            if order[name] is not None:
                raise invalid(name, f"{name} goes with method plain or dynamic.")
    elif order["candidate_bits"] is not None and len(order["candidate_bits"]) != 2:
        raise invalid("candidate_bits", "method dynamic chooses between exactly two widths.")


def _settle_mixed(order: dict[str, Any]) -> None:
    if order["target_bpw"] is None:
        raise invalid("candidate_bits", "candidate_bits goes with target_bpw.")
    if order["mode"] != "affine":
        raise invalid("target_bpw", "target_bpw goes with mode affine only.")
    for name in ("recipe", "bits"):
        if order[name] is not None:
            raise invalid(name, f"{name} does not go with target_bpw, which decides the bits of each layer.")
    widths = sorted(set(order["candidate_bits"] or (4, 8)))
    if len(widths) < 2 or any(width not in MODES["affine"].bits for width in widths):
        allowed = ", ".join(map(str, sorted(MODES["affine"].bits)))
        raise invalid("candidate_bits", f"candidate_bits must be two or more of {allowed}.")
    overhead = 32 / (order["group_size"] or MODES["affine"].group_sizes[0])
    if not widths[0] + overhead <= order["target_bpw"] <= widths[-1] + overhead:
        low, high = widths[0] + overhead, widths[-1] + overhead
        raise invalid("target_bpw", f"With these widths target_bpw must be a number from {low:g} to {high:g}.")
    order["candidate_bits"], order["bits"] = widths, widths[0]


def default_name(model_id: str, order: dict[str, Any]) -> str:
    """The old name without its precision, and the new precision."""
    stem = model_id
    for suffix in ("-fp32", "-fp16", "-bf16", "-float32", "-bfloat16"):
        stem = stem.removesuffix(suffix)
    if order["method"] == "dynamic":
        return f"{stem}-dynamic-{order['target_bpw']:g}bpw"
    if order["target_bpw"] is not None:
        return f"{stem}-mixed-{order['target_bpw']:g}bpw"
    if order["recipe"]:
        return f"{stem}-{order['recipe'].replace('_', '-')}"
    if order["mode"] != "affine":
        return f"{stem}-{order['mode']}"
    group = "" if order["group_size"] == MODES["affine"].group_sizes[0] else f"-g{order['group_size']}"
    method = "" if order["method"] == "plain" else f"-{order['method']}"
    return f"{stem}{method}-{order['bits']}bit{group}"


def submit(order: dict[str, Any], *, project: str, created_by: str, idempotency_key: str | None = None) -> Job:
    """Create the job and take its name, or neither.

    Raises:
        Refusal: 409 somebody else is making a model of that name.
    """
    with transaction.atomic():
        job = service.submit(KIND, order, project=project, created_by=created_by, idempotency_key=idempotency_key)
        if not job.ended_at:
            names.reserve(order["output"], job.id, "output")
    return job


def estimate_bytes(parameters: int, order: dict[str, Any]) -> int:
    """Memory the job will want: dense float32 copies, the one that is measured or those its method works on."""
    copies = METHODS[order.get("method", "plain")].copies
    per_weight = 4 * copies if order["report"] or copies > 1 else 2 + order["bits"] / 8
    return int(parameters * per_weight * 1.2)


def unfit(needed: int, budget: int) -> Refusal:
    gib = 1 << 30
    message = f"This needs about {needed / gib:.1f} GiB of memory; the budget is {budget / gib:.1f} GiB."
    return Refusal(400, "memory_admission", message, param="model")
