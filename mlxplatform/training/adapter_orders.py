"""Orders about adapters that exist: fuse one into its base, merge several, export one."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from mlxplatform.http.fields import Field, invalid, read
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import service
from mlxplatform.jobs.models import Job
from mlxplatform.library import names
from mlxplatform.training import finetuning, registry
from mlxplatform.training.registry import Chosen

FUSE, MERGE, EXPORT = "fuse", "merge_adapters", "export_adapter"
#: peft and safetensors are the adapter itself, gguf is base and adapter as one file.
FORMATS = ("peft", "safetensors", "gguf")
#: Largest factor of an adapter in a merge.
_MAX_WEIGHT = 1000.0


def check_fuse(body: dict[str, Any], project: str | None) -> dict[str, Any]:
    """
    Raises:
        Refusal: no such adapter, its base is gone, or the name is taken.
    """
    fields = (Field("adapter", "text", required=True, high=255), Field("output", "text", high=128))
    order = read(body, fields, ignore=("idempotency_key",))
    chosen = _lora(order["adapter"], project, "adapter")
    base = registry.base_of(chosen.adapter)
    output = order["output"] or _fused_name(base.id, chosen)
    names.check(output, "output")
    return {"adapter": chosen.id, "model": base.id, "revision": base.revision, "output": output}


def _fused_name(base: str, chosen: Chosen) -> str:
    step = f"-step-{chosen.earlier_step}" if chosen.earlier_step else ""
    return f"{base}-{chosen.adapter.name.rsplit(':', 1)[-1]}{step}"


def check_merge(body: dict[str, Any], project: str | None) -> dict[str, Any]:
    """Two or more adapters of one base; ``weights`` scale each one's effect.

    Raises:
        Refusal: fewer than two, unknown ones, or different bases.
    """
    body = dict(body)
    if "adapter_a" in body or "adapter_b" in body:
        body["adapters"] = [body.pop("adapter_a", None), body.pop("adapter_b", None)]
    if "scales" in body:
        body["weights"] = body.pop("scales")
    weights = body.pop("weights", None)
    order = read(body, (Field("adapters", "names", required=True), Field("suffix", "text", high=64)), ignore=("idempotency_key",))
    if len(order["adapters"]) < 2:
        raise invalid("adapters", "Name at least two different adapters.")
    chosen = [_lora(name, project, "adapters") for name in order["adapters"]]
    if len({one.id for one in chosen}) < len(chosen):  # an id and a name of the same
        raise invalid("adapters", "Name at least two different adapters.")
    other = next((one for one in chosen if one.adapter.fine_tune_type != "lora"), None)
    if other is not None:
        raise invalid("adapters", f"Only plain LoRA adapters can be merged; {other.asked_as} is {other.adapter.fine_tune_type}.")
    if len({(one.adapter.base_model, one.adapter.base_revision) for one in chosen}) > 1:
        raise invalid("adapters", "The adapters have different base models.")
    if weights is None:
        weights = [1.0] * len(chosen)
    numbers = isinstance(weights, list) and len(weights) == len(chosen)
    if not numbers or not all(isinstance(w, int | float) and not isinstance(w, bool) and abs(w) <= _MAX_WEIGHT for w in weights):
        raise invalid("weights", f"weights must be one number for each adapter, from -{_MAX_WEIGHT:g} to {_MAX_WEIGHT:g}.")
    return {
        "adapters": [one.id for one in chosen],
        "weights": [float(w) for w in weights],
        "suffix": finetuning.plain_suffix(order["suffix"] or "merged"),
    }


def check_export(body: dict[str, Any], project: str | None) -> dict[str, Any]:
    """
    Raises:
        Refusal: no such adapter or format, or 501 one that the format cannot hold.
    """
    fields = (Field("adapter", "text", required=True, high=255), Field("format", "text", "peft", choices=FORMATS))
    order = read(body, fields, ignore=("idempotency_key",))
    if order["format"] != "gguf":
        chosen = _lora(order["adapter"], project, "adapter")
        if order["format"] == "peft" and chosen.adapter.fine_tune_type != "lora":
            message = "Only plain LoRA adapters can be written for PEFT; format safetensors takes any."
            raise Refusal(501, "unsupported_execution", message, param="format")
        return {"adapter": chosen.id, "format": order["format"]}
    chosen = registry.choose(order["adapter"], project)
    model = registry.trained_model(chosen.adapter) if chosen.files is None else registry.base_of(chosen.adapter)
    obstacle = gguf_obstacle(model.config)
    if obstacle:
        raise Refusal(501, "unsupported_execution", f"{model.id} cannot be written as GGUF: {obstacle}.", param="format")
    return {"adapter": chosen.id, "format": "gguf", "model": model.id, "revision": model.revision}


def gguf_obstacle(config: dict[str, Any]) -> str:
    """Why a model cannot be written as a Llama-type GGUF file; empty when its configuration allows it."""
    kind = config.get("model_type")
    if kind != "llama":
        return f"its architecture is {kind}, and only llama is written"
    if config.get("rope_scaling"):
        return "it scales rope"
    heads, width = config.get("num_attention_heads"), config.get("hidden_size")
    if not isinstance(heads, int) or not isinstance(width, int) or heads < 1 or width % heads:
        return "its configuration does not say how wide its heads are"
    if config.get("head_dim") not in (None, width // heads):
        return "its heads are not of the usual width"
    return ""


def submit(kind: str, order: dict[str, Any], *, project: str, created_by: str, idempotency_key: str | None) -> Job:
    with transaction.atomic():
        job = service.submit(kind, order, project=project, created_by=created_by, idempotency_key=idempotency_key)
        if kind == FUSE and not job.ended_at:
            names.reserve(order["output"], job.id, "output")
    return job


def _lora(name: str, project: str | None, param: str) -> Chosen:
    chosen = registry.choose(name, project, param)
    if chosen.files is None:
        raise invalid(param, "That is a fully trained model, not an adapter.")
    return chosen
