"""The body of ``POST /v1/fine_tuning/jobs`` → an order. What OpenAI calls "auto" is decided here and written back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mlxplatform.http.fields import Field, invalid, read
from mlxplatform.inference.contract import Refusal
from mlxplatform.library.local_adapters import NAME_PREFIX
from mlxplatform.training import finetuning, warm_start

_BODY = (
    Field("model", "text", required=True, high=256),
    Field("training_file", "text", required=True, high=100),
    Field("validation_file", "text", high=100),
    Field("suffix", "text", high=64),
    Field("seed", "int", low=0, high=2**31 - 1),
    Field("method", "object"),
    Field("hyperparameters", "object"),
    Field("metadata", "object"),
    Field("mlx", "object"),
)
_METHODS = {"supervised": "sft", "dpo": "dpo"}
#: What "auto" means: passes over the data, and rows of a step by the number of rows.
AUTO_EPOCHS = 3
AUTO_BATCHES = ((64, 1), (512, 2), (4096, 4))
AUTO_LARGEST_BATCH = 8
#: Limits of metadata, as OpenAI has them.
_MAX_KEYS, _MAX_KEY, _MAX_VALUE = 16, 64, 512
#: Fields of the ``mlx`` object: everything of an order that OpenAI's body has no word for.
_SAID_ELSEWHERE = {
    "model",
    "dataset",
    "training_file",
    "validation_file",
    "suffix",
    "seed",
    "epochs",
    "batch_size",
    "method",
    "dpo_beta",
}
MLX_FIELDS = tuple(field.name for field in finetuning.FIELDS if field.name not in _SAID_ELSEWHERE)


def order(body: dict[str, Any], project: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """(order, what the job object shows again).

    Raises:
        Refusal: 400 or 404 with ``param``.
    """
    if body.get("integrations"):
        why = "Integrations send data to other services; there are none here."
        raise Refusal(400, "unsupported_parameter", why, param="integrations")
    sent = read(body, _BODY, ignore=("integrations",))
    kind, hyper = _method(sent)
    metadata = _metadata(sent["metadata"])
    extra = sent["mlx"] or {}
    for name in extra:
        if name not in MLX_FIELDS:
            why = f"mlx.{name} is not known; its fields are {', '.join(MLX_FIELDS)}."
            raise Refusal(400, "unknown_parameter", why, param=f"mlx.{name}")
    # A fine-tuned name goes on from its adapter; what both runs must share is its, unless the body says so itself.
    named = warm_start.continued(sent["model"], project) if sent["model"].startswith(NAME_PREFIX) else {"model": sent["model"]}
    wanted: dict[str, Any] = {
        **named,
        **extra,
        "training_file": sent["training_file"],
        "validation_file": sent["validation_file"],
        "suffix": sent["suffix"],
        "seed": sent["seed"] or 0,
        "method": _METHODS[kind],
        "loss_on": extra.get("loss_on", "all"),
    }
    if kind == "dpo" and hyper["beta"] != "auto":
        wanted["dpo_beta"] = hyper["beta"]
    with said_in_openais_words(sent["model"]):
        checked = finetuning.check({name: value for name, value in wanted.items() if value is not None}, project)
    resolved = _resolve(hyper, checked, extra)
    surface = {"method": kind, "hyperparameters": resolved, "metadata": metadata, "training_file": sent["training_file"]}
    surface["model"] = sent["model"]
    return checked, surface


@contextmanager
def said_in_openais_words(model: str) -> Iterator[None]:
    """A refusal of the order names the field as OpenAI's body does."""
    try:
        yield
    except Refusal as refusal:
        if refusal.param is None or (said := said_as(refusal.param, model)) == refusal.param:
            raise
        message = refusal.message.replace(refusal.param, said, 1)
        raise Refusal(refusal.status, refusal.code, message, param=said) from None


def said_as(param: str, model: str) -> str:
    """What OpenAI's body calls a field of an order: the adapter to start from may be the model, and the rest lies in ``mlx``."""
    if param == "warm_start_adapter" and model.startswith(NAME_PREFIX):
        return "model"
    return f"mlx.{param}" if param in MLX_FIELDS else param


def _resolve(hyper: dict[str, Any], checked: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Put numbers where "auto" stood, in the order and in what is shown."""
    rows = checked["data"]["inspection"]["train"]["rows"]
    batch = hyper["batch_size"]
    if batch == "auto":
        batch = next((size for limit, size in AUTO_BATCHES if rows < limit), AUTO_LARGEST_BATCH)
    checked["batch_size"] = min(batch, rows)
    epochs = AUTO_EPOCHS if hyper["n_epochs"] == "auto" else hyper["n_epochs"]
    if "iters" not in extra:
        checked["iters"], checked["epochs"] = None, float(epochs)
    multiplier = 1.0 if hyper["learning_rate_multiplier"] == "auto" else hyper["learning_rate_multiplier"]
    checked["learning_rate"] = min(checked["learning_rate"] * multiplier, 1.0)
    shown = {"batch_size": checked["batch_size"], "learning_rate_multiplier": multiplier, "n_epochs": epochs}
    return shown | ({"beta": checked["dpo_beta"]} if checked["method"] == "dpo" else {})


def _method(sent: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    method = {"type": "supervised"} if sent["method"] is None else sent["method"]
    kind = method.get("type")
    if kind == "reinforcement":
        raise Refusal(400, "unsupported_parameter", "Reinforcement fine-tuning is not offered here.", param="method.type")
    if not isinstance(kind, str) or kind not in _METHODS:
        raise invalid("method.type", f"method.type must be one of {', '.join(_METHODS)}.")
    inner = read(method, (Field("type", "text"), Field(kind, "object")), prefix="method.")[kind] or {}
    own = read(inner, (Field("hyperparameters", "object"),), prefix=f"method.{kind}.")["hyperparameters"]
    hyper = own or sent["hyperparameters"] or {}
    where = f"method.{kind}.hyperparameters" if own else "hyperparameters"
    fields = [
        Field("batch_size", "int", "auto", low=1, high=256),
        Field("n_epochs", "int", "auto", low=1, high=1000),
        Field("learning_rate_multiplier", "float", "auto", low=1e-6, high=1e6),
        Field("beta", "float", "auto", low=0.0001, high=100),
    ][: 4 if kind == "dpo" else 3]
    given = {name: value for name, value in hyper.items() if value != "auto"}
    return kind, read(given, fields, prefix=f"{where}.")


def _metadata(value: dict[str, Any] | None) -> dict[str, str] | None:
    if value is None:
        return None
    fits = all(isinstance(text, str) and len(text) <= _MAX_VALUE and len(key) <= _MAX_KEY for key, text in value.items())
    if len(value) > _MAX_KEYS or not fits:
        raise invalid("metadata", "metadata holds at most 16 pairs of text: keys up to 64, values up to 512 characters.")
    return value
