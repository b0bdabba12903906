"""How a schedule starts each kind of job: through the same door, with the same checks, as the API.

A schedule's configuration is the body one would send to the kind's endpoint. It is checked when the schedule
is saved and again each time it fires, so a model or dataset that went away is a recorded refusal, not a job
that fails. A kind without an entry here cannot be scheduled: its configuration is for the platform only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlxplatform.jobs.models import Job

#: (configuration, project) → None, raising Refusal.
Check = Callable[[dict[str, Any], str], None]
#: (configuration, project, created_by, idempotency_key) → Job, raising Refusal.
Start = Callable[[dict[str, Any], str, str, str], Job]

_starters: dict[str, tuple[Check, Start]] = {}


def register(kind: str, check: Check, start: Start) -> None:
    """Let a kind be scheduled."""
    _starters[kind] = (check, start)


def names() -> list[str]:
    return sorted(_starters)


def check(kind: str, config: dict[str, Any], project: str) -> None:
    """Refuse a configuration that could not be started now.

    Raises:
        Refusal: from the kind's own checks.
        LookupError: the kind cannot be scheduled.
    """
    _starters[kind][0](config, project)


def start(kind: str, config: dict[str, Any], project: str, created_by: str, idempotency_key: str) -> Job:
    return _starters[kind][1](config, project, created_by, idempotency_key)


def register_known() -> None:
    """The platform's own kinds. Imports are late: this runs while apps are still being set up."""

    def check_dataset(config: dict[str, Any], project: str) -> None:
        from mlxplatform.datasets import submit

        submit.check(config, project)

    def start_dataset(config: dict[str, Any], project: str, created_by: str, key: str) -> Job:
        from mlxplatform.datasets import submit

        return submit.submit(submit.check(config, project), project=project, created_by=created_by, idempotency_key=key)[0]

    def check_quantize(config: dict[str, Any], project: str) -> None:
        from mlxplatform.training import quantization

        quantization.check(config)

    def start_quantize(config: dict[str, Any], project: str, created_by: str, key: str) -> Job:
        from mlxplatform.training import quantization

        return quantization.submit(quantization.check(config), project=project, created_by=created_by, idempotency_key=key)

    def check_synthesis(config: dict[str, Any], project: str) -> None:
        from mlxplatform.memory import orders

        orders.check_synthesis(config, project)

    def start_synthesis(config: dict[str, Any], project: str, created_by: str, key: str) -> Job:
        from mlxplatform.memory import orders

        return orders.synthesize(config, project, created_by, key)

    register("dataset", check_dataset, start_dataset)
    register("quantize", check_quantize, start_quantize)
    register("memory_synthesis", check_synthesis, start_synthesis)
