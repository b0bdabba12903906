"""A run's figures by step, read from the job's event log: the same after a reload, a resume or a year."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlxplatform.jobs.models import Job, JobEvent


def curve_of(job: Job) -> dict[str, Any]:
    """Train and validation figures of a job."""
    return by_step(JobEvent.objects.filter(job=job, type="metric").order_by("seq").values_list("payload", flat=True))


def from_file(path: Path) -> dict[str, Any]:
    """The same from the curve a run published with its result."""
    return by_step(json.loads(line) for line in path.read_text().splitlines())


def by_step(payloads: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """One entry per step and kind: steps repeated after a resume count once, the last time."""
    by_kind: dict[str, dict[int, dict[str, Any]]] = {"train": {}, "val": {}}
    for payload in payloads:
        if payload.get("kind") in by_kind:
            by_kind[payload["kind"]][payload["step"]] = {name: value for name, value in payload.items() if name != "kind"}
    return {kind: [steps[number] for number in sorted(steps)] for kind, steps in by_kind.items()}
