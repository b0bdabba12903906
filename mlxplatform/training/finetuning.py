"""Orders to fine-tune: fields, defaults, and what is refused before a job exists.

The configuration a job keeps names data by id, never by path; the runner finds the files. Fields are those of the
older system and of mlx-lm where they mean the same.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import transaction

from mlxplatform.http.fields import Field, invalid, read
from mlxplatform.inference.placement import model_not_found
from mlxplatform.jobs import service
from mlxplatform.jobs.models import Job
from mlxplatform.library import local_models, names
from mlxplatform.library.local_models import LocalModel
from mlxplatform.training import data, warm_start
from mlxplatform.training.models import Adapter, TrainingRun

KIND = "finetune"
#: Row formats each method can learn from.
FORMATS = {
    "sft": ("messages", "prompt_completion", "text"),
    "dpo": ("preference",),
    "orpo": ("preference",),
}
#: Checkpoints that stay beside the result when an order does not say: with it, three, as OpenAI keeps them.
KEPT_CHECKPOINTS = 2
#: Tokens of the longest row that is learned whole, when an order does not say.
SEQUENCE = 512
#: Default peak learning rate by method.
LEARNING_RATES = {"sft": 2e-4, "dpo": 5e-5, "orpo": 1e-5}

FIELDS = (
    Field("model", "text", required=True, high=128, doc="Id of the base model"),
    Field("dataset", "text", high=100, doc="Dataset id, with @version for another than the newest"),
    Field("training_file", "text", high=100, doc="Id of an uploaded file, instead of a dataset"),
    Field("validation_file", "text", high=100, doc="Id of an uploaded file to validate on"),
    Field("valid_fraction", "float", 0.0, low=0, high=0.5, doc="Share of the rows set apart when there is no validation data"),
    Field("suffix", "text", high=64, doc="Part of the new name"),
    Field("output", "text", high=128, doc="Name of the new model; full fine-tunes only"),
    Field("method", "text", "sft", choices=tuple(FORMATS), doc="What is learned"),
    Field("fine_tune_type", "text", "lora", choices=("lora", "dora", "full"), doc="Which weights are trained"),
    Field("rank", "int", 8, low=1, high=512, doc="Rank of the adapter"),
    Field("scale", "float", 20.0, low=0.001, high=1000, doc="Factor of the adapter's output"),
    Field(
        "rank_scaling",
        "text",
        "constant",
        choices=("constant", "by_bits", "by_kl"),
        doc="One rank for all layers, or more for layers of more bits, or for those that packing hurt most",
    ),
    Field("rs_lora", "bool", False, doc="Scale by the root of the rank; rank_scaling constant only"),
    Field("lora_plus_ratio", "float", 1.0, low=1, high=64, doc="LoRA+: how much faster the B matrices learn"),
    Field("warm_start_adapter", "text", high=255, doc="Adapter of the same base, layers and rank to start from"),
    Field("lora_dropout", "float", 0.0, low=0, high=0.9, doc="Dropout in front of the adapter"),
    Field("target_modules", "names", doc="Layers that get an adapter; all linear ones when absent"),
    Field("num_layers", "int", -1, low=-1, high=10_000, doc="Train the last N blocks; -1: all"),
    Field("iters", "int", low=1, high=10_000_000, doc="Steps; 100 unless epochs is given"),
    Field("epochs", "float", low=0.001, high=10_000, doc="Passes over the data, instead of iters"),
    Field("batch_size", "int", 1, low=1, high=1024, doc="Rows of one step"),
    Field("grad_accumulation_steps", "int", 1, low=1, high=1024, doc="Steps whose gradients make one update"),
    Field("learning_rate", "float", low=1e-9, high=1.0, doc="Peak learning rate; by method when absent"),
    Field("lr_schedule", "text", "constant", choices=("constant", "linear", "cosine"), doc="How the rate falls"),
    Field("warmup_iters", "int", 0, low=0, high=1_000_000, doc="Updates over which the rate rises"),
    Field("optimizer", "text", "adamw", choices=("adamw", "adam", "sgd", "adafactor", "muon"), doc="Optimizer"),
    Field("weight_decay", "float", 0.01, low=0, high=1, doc="Weight decay, where the optimizer has it"),
    Field("grad_clip_norm", "float", 1.0, low=0, high=1e6, doc="Largest gradient norm; 0: off"),
    Field("max_seq_length", "int", low=8, high=1_000_000, doc="Longer rows are cut; 512, or the model's window if that is less"),
    Field("mask_prompt", "bool", True, doc="Learn answers only"),
    Field("loss_on", "text", "last", choices=("last", "all"), doc="Learn the last answer of a chat, or every one"),
    Field("seed", "int", 0, low=0, high=2**31 - 1, doc="Seed of everything random"),
    Field("steps_per_report", "int", 10, low=1, high=1_000_000, doc="Steps between training figures"),
    Field("steps_per_eval", "int", 50, low=1, high=10_000_000, doc="Steps between validations"),
    Field("steps_per_save", "int", 50, low=1, high=10_000_000, doc="Steps between checkpoints"),
    Field(
        "keep_checkpoints",
        "int",
        low=0,
        high=20,
        doc="Earlier checkpoints that stay and can be asked by name: of each epoch, with iters of each steps_per_save; 2",
    ),
    Field("val_max_examples", "int", 256, low=0, high=1_000_000, doc="Validation rows used; 0: all"),
    Field("early_stop_patience", "int", 0, low=0, high=1000, doc="Stop after so many validations without improvement; 0: never"),
    Field("keep", "text", choices=("last", "best"), doc="Which weights are published; best with early stopping, else last"),
    Field("grad_checkpoint", "bool", False, doc="Less memory, more time"),
    Field("dpo_beta", "float", 0.1, low=0.0001, high=100, doc="DPO: how far from the reference"),
    Field("orpo_lambda", "float", 0.1, low=0, high=100, doc="ORPO: weight of the odds ratio"),
)
#: Where a run's configuration says what it learned from: as a job shows it, and as its ``run.json`` does.
_SOURCES = ("data", "lineage")
#: Names of the older system for the same fields.
ALIASES = {
    "model_dir": "model",
    "model_id": "model",
    "data_dir": "dataset",
    "dataset_id": "dataset",
    "adapter_path": "suffix",
    **{f"{method}_warmup_iters": "warmup_iters" for method in ("dpo", "orpo")},
    **{f"{method}_lr_schedule": "lr_schedule" for method in ("dpo", "orpo")},
}


def check(body: dict[str, Any], project: str | None) -> dict[str, Any]:
    """The complete configuration of a job, its data looked through. A run's own configuration is an order for the same run.

    Raises:
        Refusal: with the field that is wrong.
    """
    body = _repeated(body) if any(isinstance(body.get(name), dict) for name in _SOURCES) else dict(body)
    for old, new in ALIASES.items():
        if old in body:
            value = body.pop(old)
            body.setdefault(new, value)
    order = read(body, FIELDS, ignore=("idempotency_key", "revision"))
    model = base(order["model"])
    if body.get("revision") not in (None, model.revision):
        raise invalid("revision", f"{model.id} is not as it was in that run; leave revision out to train on it as it is.")
    _settle(order, model)
    order["revision"] = model.revision
    if order["warm_start_adapter"] is not None:
        order["warm_start_adapter"] = warm_start.check(order, model, project)
    order["data"] = data.choose(order, project)
    order["data"]["inspection"] = found = data.inspect(order["data"], FORMATS[order["method"]])
    if not model.chat_template and set(found["train"]["formats"]) != {"text"}:
        raise invalid("model", f"{model.id} has no chat template: it can learn from rows with a text key only.")
    if not order["valid_fraction"] and not (found["valid"] or {}).get("rows"):
        vain = [name for name, plain in (("early_stop_patience", 0), ("keep", "last")) if order[name] != plain]
        found["warnings"] += [f"{vain[0]} has nothing to go by: the run has no validation rows."] if vain else []
    return order


def _repeated(config: dict[str, Any]) -> dict[str, Any]:
    """A run's configuration, as its job shows it or its ``run.json`` holds it, as an order: its data by version, and nothing
    that follows from the rest. A model it made keeps its name, so this one gets a name of its own."""
    source = next(config[name] for name in _SOURCES if isinstance(config.get(name), dict))
    kept = {field.name for field in FIELDS} - {"output"} | {"revision"}
    body = {name: value for name, value in config.items() if name in kept}
    if "dataset" in source:
        body["dataset"] = f"{source['dataset']}@{source.get('version')}"
    return body


def base(name: str) -> LocalModel:
    """The local chat model of exactly this id.

    Raises:
        Refusal: 404, the same for paths and unknown names.
    """
    model = local_models.find(name, settings.HOME)
    if model is None:
        raise model_not_found(name)
    if model.kind != "chat":
        raise invalid("model", "Only chat models can be fine-tuned.")
    if model.obstacle:
        raise invalid("model", f"{model.id} cannot be fine-tuned: {model.obstacle}.")
    return model


def _settle(order: dict[str, Any], model: LocalModel) -> None:
    if order["iters"] is not None and order["epochs"] is not None:
        raise invalid("epochs", "Give iters or epochs, not both.")
    if order["iters"] is None and order["epochs"] is None:
        order["iters"] = 100
    if order["learning_rate"] is None:
        order["learning_rate"] = LEARNING_RATES[order["method"]]
    if order["num_layers"] == 0:
        raise invalid("num_layers", "num_layers must be -1 or at least 1.")
    if order["max_seq_length"] is None:
        order["max_seq_length"] = min(SEQUENCE, model.context or SEQUENCE)
    elif model.context and order["max_seq_length"] > model.context:
        raise invalid("max_seq_length", f"max_seq_length must be at most {model.context}, the model's window.")
    if order["target_modules"] is not None:
        _check_modules(order["target_modules"], model)
    if order["suffix"] is not None:
        order["suffix"] = plain_suffix(order["suffix"])
    full = order["fine_tune_type"] == "full"
    if order["method"] == "dpo" and order["fine_tune_type"] != "lora":
        raise invalid("fine_tune_type", "dpo needs lora: its reference is the model with the adapter's output off.")
    if full and model.quantization:
        raise invalid("fine_tune_type", "A quantized model cannot be trained in full; use lora or dora.")
    if order["output"] is not None and not full:
        raise invalid("output", "output names a full fine-tune; an adapter's name is made from suffix.")
    if order["rs_lora"] and order["rank_scaling"] != "constant":
        raise invalid("rs_lora", "rs_lora goes with rank_scaling constant only.")
    for name, plain in (("rank_scaling", "constant"), ("rs_lora", False), ("lora_plus_ratio", 1.0), ("warm_start_adapter", None)):
        if full and order[name] != plain:
            raise invalid(name, f"{name} goes with adapters; a full fine-tune has none.")
    if order["keep_checkpoints"] is None:
        order["keep_checkpoints"] = KEPT_CHECKPOINTS if order["fine_tune_type"] == "lora" else 0
    elif order["keep_checkpoints"] and order["fine_tune_type"] != "lora":
        raise invalid("keep_checkpoints", "Only checkpoints of lora can be asked by name; leave keep_checkpoints out.")
    if order["keep"] is None:
        order["keep"] = "best" if order["early_stop_patience"] else "last"
    order["dtype"] = model.dtype if model.dtype in {"float32", "bfloat16", "float16"} else "bfloat16"


def _check_modules(wanted: list[str], model: LocalModel) -> None:
    """Refuse a name that no layer bears. Only weights that mlx-lm wrote are named as the layers will be."""
    named = local_models.layers(model)
    leaves = {path.rsplit(".", 1)[-1] for path in named}
    for name in wanted:
        if named and name not in leaves and not any(path.endswith(f".{name}") for path in named):
            raise invalid("target_modules", f"{model.id} has no layer {name[:80]}; it has {', '.join(sorted(leaves))}.")


def plain_suffix(raw: str) -> str:
    """The part of a name that a person chooses, without what has a meaning in names.

    Raises:
        Refusal: nothing is left of it.
    """
    kept = "".join(char if char.isalnum() and char.isascii() else "-" for char in raw.lower()).strip("-")
    if not kept:
        raise invalid("suffix", "suffix must contain letters from a to z, or digits.")
    return kept


def submit(
    order: dict[str, Any],
    *,
    project: str,
    created_by: str,
    idempotency_key: str | None = None,
    surface: dict[str, Any] | None = None,
) -> Job:
    """Create the job and its run. ``surface`` is what the API it came through wants to show again."""
    with transaction.atomic():
        job = service.submit(KIND, order, project=project, created_by=created_by, idempotency_key=idempotency_key)
        if order["fine_tune_type"] == "full":
            output = full_output(order, job.id)
            names.check(output, "output")
            names.reserve(output, job.id, "output")
        TrainingRun.objects.get_or_create(job=job.id, defaults={"project": project, "surface": surface or {}})
    return job


def short(job_id: str) -> str:
    return job_id.removeprefix("job_")[:8]


def full_output(order: dict[str, Any], job_id: str) -> str:
    """The library name of a fully trained model."""
    return str(order["output"] or f"{order['model']}-{order['suffix'] or 'ft'}-{short(job_id)}")


def adapter_id(job_id: str) -> str:
    """The adapter a job makes; fixed from the start, so that a second attempt publishes nothing twice."""
    return f"ad_{job_id.removeprefix('job_')}"


def model_name(order: dict[str, Any], job_id: str) -> str:
    """The name the result is asked by."""
    suffix = order.get("suffix") or ""
    return f"ft:{order['model']}:local:{suffix}:{short(job_id)}"


def estimate_bytes(model: LocalModel, order: dict[str, Any]) -> int:
    """Memory a run will want: weights, the trained part with optimizer state, and activations, roughly from above."""
    hidden, layers = model.stated("hidden_size") or 1024, model.stated("num_hidden_layers") or 24
    vocabulary = model.stated("vocab_size") or 50_000
    weights = model.parameters * 4 if not model.quantization else model.bytes
    trained = 3 * 4 * model.parameters if order["fine_tune_type"] == "full" else 0
    tokens = order["batch_size"] * order["max_seq_length"] * (2 if order["method"] != "sft" else 1)
    per_layer = hidden * 4 * (2 if order["grad_checkpoint"] else 34)
    return int(weights + trained + tokens * (layers * per_layer + vocabulary * 4 * 3))


def ended(job: Job) -> None:
    """The job ended: free its name. Called within the transaction that ends it."""
    names.job_ended(job)


def published(job: Job) -> Adapter | None:
    return Adapter.objects.filter(job=job.id).first()
