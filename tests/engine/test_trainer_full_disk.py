"""A disk that takes no more when a trainer saves or publishes: a sentence, nothing half-made, and a retry that succeeds."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from mlxplatform.jobs import service
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.pulse import Pulse
from mlxplatform.library import local_adapters, publication
from mlxplatform.training import quantization
from mlxplatform.training.curves import curve_of
from mlxplatform.training.models import Adapter
from tests.engine.test_trainer_finetune import order
from tests.fixtures.trainer_jobs import run_to_end, stages
from workers.tasks import trainer_child

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("broker", "home"),
    pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of a running process can be set on Linux only"),
]

#: Largest file a child may write, bytes: less than the weights of anything.
NO_ROOM = 30_000


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[dict[str, Any]], bool]], list[int]]:
    """``full_disk(when)``: from the first event ``when`` is true of, the first child writes no large file any more."""
    begin, forward = trainer_child.Child.__init__, trainer_child.Run._forward
    children: list[int] = []

    def remember(child: trainer_child.Child, task: dict[str, Any]) -> None:
        begin(child, task)
        children.append(child.process.pid)

    def arrange(when: Callable[[dict[str, Any]], bool]) -> list[int]:
        limited: list[int] = []

        def watched(run: trainer_child.Run, event: dict[str, Any]) -> None:
            if when(event) and not limited:
                limited.append(children[0])
                resource.prlimit(children[0], resource.RLIMIT_FSIZE, (NO_ROOM, NO_ROOM))
            forward(run, event)

        monkeypatch.setattr(trainer_child.Child, "__init__", remember)
        monkeypatch.setattr(trainer_child.Run, "_forward", watched)
        return limited

    return arrange


def at_once(event: dict[str, Any]) -> bool:
    return True


def refused(job: Job) -> None:
    """It failed in a sentence about the disk, once."""
    assert (job.state, job.error_code, job.attempts) == ("failed", "cannot_write", 1), job.error
    assert job.error.startswith("Writing failed: ") and str(settings.HOME) not in job.error


def test_at_a_checkpoint_what_was_saved_before_is_kept(worker: Pulse, full_disk: Any) -> None:
    full_disk(lambda event: event.get("kind") == "train" and event["step"] == 21)
    job = order(iters=400, steps_per_report=1, steps_per_save=20)

    job = run_to_end(worker, job)

    refused(job)
    assert local_adapters.scan(settings.HOME) == []
    service.retry(job.id, "test")
    job = run_to_end(worker, job)
    assert job.state == "done", job.error
    assert "resumed" in stages(job)
    assert [point["step"] for point in curve_of(job)["train"]] == list(range(1, 401))


def quantized(**fields: Any) -> Callable[[Pulse], Job]:
    def submit(worker: Pulse) -> Job:
        body = quantization.check({"model": "tiny", **fields})
        return quantization.submit(body, project="default", created_by="test")

    return submit


def trained(**fields: Any) -> Callable[[Pulse], Job]:
    return lambda worker: order(iters=2, **fields)


def of_an_adapter(kind: str, **fields: Any) -> Callable[[Pulse], Job]:
    def submit(worker: Pulse) -> Job:
        made = [Adapter.objects.get(job=run_to_end(worker, order(iters=1)).id) for _ in range(1 + (kind == "merge"))]
        body = {"adapters": [adapter.id for adapter in made]} if kind == "merge" else {"adapter": made[0].id}
        answer = Client().post(f"/api/finetune/{kind}", json.dumps(body | fields), content_type="application/json")
        assert answer.status_code == 200, answer.content
        return Job.objects.get(pk=answer.json()["job_id"])

    return submit


ORDERS = {
    "uniform": quantized(bits=8),
    "mixed": quantized(target_bpw=6.0, group_size=32, report=False),
    "gptq": quantized(method="gptq", bits=4, group_size=32, report=False),
    "lora": trained(),
    "full": trained(fine_tune_type="full", learning_rate=1e-4),
    "fuse": of_an_adapter("fuse", output="fused"),
    "merge": of_an_adapter("merge"),
    "export": of_an_adapter("export"),
    "export-gguf": of_an_adapter("export", format="gguf"),
}


#: Each another way of writing; the others end like one of them, two seconds each.
OFTEN = ("uniform", "lora", "fuse", "export-gguf")


@pytest.mark.parametrize("kind", [kind if kind in OFTEN else pytest.param(kind, marks=pytest.mark.drill) for kind in ORDERS])
def test_at_the_end_nothing_is_published_and_a_retry_publishes(worker: Pulse, full_disk: Any, kind: str) -> None:
    job = ORDERS[kind](worker)
    before = everything_below(settings.HOME)
    limited = full_disk(at_once)

    job = run_to_end(worker, job)

    assert limited
    refused(job)
    assert everything_below(settings.HOME) == before
    service.retry(job.id, "test")
    job = run_to_end(worker, job)
    assert job.state == "done", job.error
    assert not (settings.HOME / "training" / job.id).exists()
    assert not any(publication.PRIVATE_PREFIX in path for path in everything_below(settings.HOME))


def everything_below(home: Path) -> set[str]:
    """Files of models and adapters: those a library shows, and any left beside them."""
    return {str(path) for name in ("models", "adapters") for path in (home / name).rglob("*")}
