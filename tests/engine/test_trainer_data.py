"""What happens to a fine-tune's rows between its order and its start: said by field, before anything is loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from mlxplatform.broker.lease import Lease
from mlxplatform.datasets import publish
from mlxplatform.files import blobs
from mlxplatform.files import service as files
from mlxplatform.jobs import service
from mlxplatform.jobs.context import JobFailed
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.pulse import Pulse
from mlxplatform.training import finetuning, registry
from mlxplatform.training.curves import curve_of
from mlxplatform.training.models import Adapter
from tests.engine.test_trainer_finetune import CODE, order
from tests.fixtures.trainer_jobs import payloads, run_to_end
from tests.fixtures.training_data import TROUBLES, published, spoil
from workers.tasks import trainer_child

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker", "home")]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every lease that was asked for and every child that was started."""
    seen: list[Any] = []
    for kind, name in ((Lease, "acquire"), (trainer_child.Child, "__init__")):
        monkeypatch.setattr(kind, name, lambda *given, **named: seen.append(given))
    return seen


def shown(job: Job) -> dict[str, Any]:
    """The job as OpenAI's clients see it."""
    return json.loads(Client().get(f"/v1/fine_tuning/jobs/ftjob-{job.id.removeprefix('job_')}").content)


@pytest.mark.parametrize("param", ["training_file", "validation_file"])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_file_spoiled_since_the_order_fails_the_run_by_field_before_anything_starts(
    worker: Pulse, begun: list[Any], trouble: str, param: str
) -> None:
    job = order([CODE] * 6, valid=[CODE], iters=1)
    spoil(job.config["data"][param], trouble)

    job = run_to_end(worker, job)

    seen = shown(job)
    assert (seen["status"], seen["fine_tuned_model"], begun, job.attempts) == ("failed", None, [], 1)
    assert (seen["error"]["code"], seen["error"]["param"]) == (TROUBLES[trouble][1], param)
    assert param in seen["error"]["message"] or "No such File" in seen["error"]["message"]
    assert str(settings.HOME) not in json.dumps(payloads(job, "failed"))
    if trouble == "deleted":
        service.retry(job.id, "test")
        assert run_to_end(worker, job).error_code == "file_not_found"


def test_a_dataset_gone_since_the_order_fails_the_run_by_field(worker: Pulse, begun: list[Any]) -> None:
    for gone in ("version", "files"):
        version = published([CODE] * 6, [CODE])
        checked = finetuning.check({"model": "tiny", "dataset": version.dataset_id, "iters": 1}, None)
        job = finetuning.submit(checked, project="default", created_by="test")
        shutil.rmtree(publish.path_of(version.location, "")) if gone == "files" else version.delete()

        job = run_to_end(worker, job)

        code = "file_not_found" if gone == "files" else "dataset_not_found"
        assert (job.state, job.error_code, shown(job)["error"]["param"]) == ("failed", code, "dataset")
    assert begun == []


def test_a_model_gone_or_changed_since_the_order_is_blamed_by_field(worker: Pulse, begun: list[Any]) -> None:
    changed, gone = order([CODE] * 6, iters=1), order([CODE] * 6, iters=1)
    config = settings.HOME / "models" / "tiny" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "rope_theta": 5.0}))
    run_to_end(worker, changed)
    shutil.rmtree(settings.HOME / "models" / "tiny")
    run_to_end(worker, gone)

    assert [(job.error_code, shown(job)["error"]["param"]) for job in (changed, gone)] == [
        ("model_changed", "model"),
        ("model_not_found", "model"),
    ]
    assert begun == []


def test_rows_that_vanish_while_the_child_starts_are_blamed_by_field(worker: Pulse, monkeypatch: pytest.MonkeyPatch) -> None:
    job = order([CODE] * 6, iters=1)
    begin = trainer_child.Child.__init__

    def vanish(child: trainer_child.Child, task: dict[str, Any]) -> None:
        Path(task["train"]).unlink()
        begin(child, task)

    monkeypatch.setattr(trainer_child.Child, "__init__", vanish)

    job = run_to_end(worker, job)

    assert (job.state, job.error_code, shown(job)["error"]["param"]) == ("failed", "file_not_found", "training_file")
    assert str(settings.HOME) not in job.error


def test_a_run_that_has_begun_goes_on_when_its_file_is_deleted(worker: Pulse, monkeypatch: pytest.MonkeyPatch) -> None:
    job = order([CODE] * 6, iters=12, steps_per_report=1, steps_per_save=2)
    file = job.config["data"]["training_file"]
    forward = trainer_child.Run._forward

    def die_at_step_4(run: trainer_child.Run, event: dict[str, Any]) -> None:
        at = event.get("step")
        forward(run, event)
        if at == 4:
            raise JobFailed("trainer_died", "It died.", retry=True)

    with monkeypatch.context() as patch:
        patch.setattr(trainer_child.Run, "_forward", die_at_step_4)
        job = run_to_end(worker, job)
    assert job.state == "queued", job.error
    files.delete(files.find(file, None))
    files.sweep()
    Job.objects.filter(pk=job.id).update(due_at=job.created_at)

    job = run_to_end(worker, job)

    assert job.state == "done", job.error
    assert [point["step"] for point in curve_of(job)["train"]] == list(range(1, 13))
    files.sweep()
    assert not blobs.path_of(file).exists()


def test_an_adapter_to_start_from_that_is_gone_is_blamed_on_the_model_that_was_named(worker: Pulse) -> None:
    made = run_to_end(worker, order([CODE] * 6, iters=1))
    body = {"model": made.result["name"], "training_file": made.config["data"]["training_file"], "mlx": {"iters": 1}}
    answer = Client().post("/v1/fine_tuning/jobs", json.dumps(body), content_type="application/json")
    assert answer.status_code == 200, answer.content
    again = Job.objects.exclude(pk=made.id).get()
    registry.remove(Adapter.objects.get(job=made.id))

    again = run_to_end(worker, again)

    assert shown(again)["error"] == {
        "code": "adapter_not_found",
        "message": "The adapter to start from is not here any more.",
        "param": "model",
    }
