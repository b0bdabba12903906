"""How a schedule starts each kind of job: through the same door, with the same checks, as the API.

A schedule's configuration is the body one would send to the kind's endpoint. It is checked when the schedule
is saved and again each time it fires, so a model or dataset that went away is a recorded refusal, not a job
that fails. A kind without an entry here cannot be scheduled: its configuration is for the platform only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs.models import Job

Config = dict[str, Any]
#: (configuration, project) → None, raising Refusal.
Check = Callable[[Config, str], object]
#: (configuration, project, created_by, idempotency_key) → Job, raising Refusal.
Start = Callable[[Config, str, str, str], Job]

#: Kinds whose jobs use up the tokens of the key that ordered them.
SPENDING = frozenset({"dataset", "batch", "memory_synthesis"})

_starters: dict[str, tuple[Check, Start]] = {}


def register(kind: str, check: Check, start: Start) -> None:
    """Let a kind be scheduled."""
    _starters[kind] = (check, start)


def names() -> list[str]:
    return sorted(_starters)


def check(kind: str, config: Config, project: str) -> None:
    """Refuse a configuration that could not be started now.

    Raises:
        Refusal: from the kind's own checks.
        LookupError: the kind cannot be scheduled.
    """
    _starters[kind][0](config, project)


def start(kind: str, config: Config, project: str, created_by: str, idempotency_key: str) -> Job:
    return _starters[kind][1](config, project, created_by, idempotency_key)


# The platform's own kinds. Their modules are imported when needed: this one is read while apps are being set up.


def _check_dataset(config: Config, project: str) -> object:
    from mlxplatform.datasets import submit

    return submit.check(config, project)


def _start_dataset(config: Config, project: str, created_by: str, key: str) -> Job:
    from mlxplatform.datasets import submit

    return submit.submit(submit.check(config, project), project=project, created_by=created_by, idempotency_key=key)[0]


def _check_batch(config: Config, project: str) -> Any:
    """(endpoint, file, length) of a batch order: ``input_file_id``, ``endpoint``, ``completion_window``."""
    from mlxplatform.batches import protocols, service
    from mlxplatform.files import service as files

    allowed = ("input_file_id", "endpoint", "completion_window")
    for name, value in config.items():
        if name not in allowed or not isinstance(value, str):
            raise Refusal(400, "invalid_value", f"a scheduled batch takes the texts {', '.join(allowed)}", param=name)
    if config.get("endpoint") not in protocols.endpoints():
        raise Refusal(
            400, "invalid_value", f"endpoint must be one of {', '.join(sorted(protocols.endpoints()))}", param="endpoint"
        )
    file = files.find(config.get("input_file_id", ""), project, param="input_file_id")
    return config["endpoint"], file, service.window(config.get("completion_window", "24h"))


def _start_batch(config: Config, project: str, created_by: str, key: str) -> Job:
    from mlxplatform.batches import service

    endpoint, file, lifetime = _check_batch(config, project)
    batch = service.create(
        "openai",
        endpoint,
        file,
        project=project,
        created_by=created_by,
        lifetime=lifetime,
        completion_window=config.get("completion_window", "24h"),
        idempotency_key=key,
    )
    assert batch.job is not None
    return batch.job


def _check_finetune(config: Config, project: str) -> object:
    from mlxplatform.training import finetuning

    return finetuning.check(config, project)


def _start_finetune(config: Config, project: str, created_by: str, key: str) -> Job:
    from mlxplatform.training import finetuning

    return finetuning.submit(finetuning.check(config, project), project=project, created_by=created_by, idempotency_key=key)


def _check_quantize(config: Config, project: str) -> object:
    from mlxplatform.training import quantization

    return quantization.check(config)


def _start_quantize(config: Config, project: str, created_by: str, key: str) -> Job:
    from mlxplatform.training import quantization

    return quantization.submit(quantization.check(config), project=project, created_by=created_by, idempotency_key=key)


def _adapter_check(kind: str, config: Config, project: str) -> Config:
    from mlxplatform.training import adapter_orders, evaluation

    checks = {
        adapter_orders.FUSE: adapter_orders.check_fuse,
        adapter_orders.MERGE: adapter_orders.check_merge,
        adapter_orders.EXPORT: adapter_orders.check_export,
        evaluation.KIND: evaluation.check,
    }
    return checks[kind](config, project)


def _adapter_starter(kind: str) -> tuple[Check, Start]:
    def start_adapter(config: Config, project: str, created_by: str, key: str) -> Job:
        from mlxplatform.training import adapter_orders

        order = _adapter_check(kind, config, project)
        return adapter_orders.submit(kind, order, project=project, created_by=created_by, idempotency_key=key)

    return lambda config, project: _adapter_check(kind, config, project), start_adapter


def _check_download(config: Config, project: str) -> object:
    for name in config:
        if name not in {"repo_id", "revision"}:
            raise Refusal(400, "unknown_field", "a scheduled download takes repo_id and revision", param=name)
    if not isinstance(config.get("repo_id"), str) or "/" not in config["repo_id"]:
        raise Refusal(400, "invalid_value", "repo_id must be owner/name", param="repo_id")
    return None


def _start_download(config: Config, project: str, created_by: str, key: str) -> Job:
    from mlxplatform.library import downloads

    return downloads.submit(config.get("repo_id"), revision=config.get("revision"), project=project, created_by=created_by)


def _check_synthesis(config: Config, project: str) -> object:
    from mlxplatform.memory import orders

    return orders.check_synthesis(config, project)


def _start_synthesis(config: Config, project: str, created_by: str, key: str) -> Job:
    from mlxplatform.memory import orders

    return orders.synthesize(config, project, created_by, key)


def register_known() -> None:
    register("dataset", _check_dataset, _start_dataset)
    register("batch", _check_batch, _start_batch)
    register("finetune", _check_finetune, _start_finetune)
    register("quantize", _check_quantize, _start_quantize)
    for kind in ("fuse", "merge_adapters", "export_adapter", "evaluate_adapter"):
        register(kind, *_adapter_starter(kind))
    register("download", _check_download, _start_download)
    register("memory_synthesis", _check_synthesis, _start_synthesis)
