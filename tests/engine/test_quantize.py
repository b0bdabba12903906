"""Quantize jobs on a tiny model: published whole and measured, or not at all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from mlxplatform.broker.connections import sync_client
from mlxplatform.broker.lease import look
from mlxplatform.jobs import service
from mlxplatform.jobs.pulse import Pulse
from mlxplatform.library import local_models
from mlxplatform.training import quantization, reports
from mlxplatform.training.models import QualityReport
from tests.fixtures import tiny_model
from tests.fixtures.trainer_jobs import logs, payloads, run_to_end, stages, start, wait_until
from workers.tasks import trainer_child

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker")]

MODELS = settings.HOME / "models"


@pytest.fixture(autouse=True)
def models() -> Iterator[Path]:
    tiny_model.install(settings.HOME, "tiny", steps=tiny_model.TRAINED_STEPS)
    yield MODELS
    shutil.rmtree(MODELS)


def order(**fields: Any) -> Any:
    return quantization.submit(quantization.check({"model": "tiny", **fields}), project="default", created_by="test")


def test_an_eight_bit_model_is_published_with_a_report(worker: Pulse) -> None:
    job = run_to_end(worker, order(bits=8))

    assert job.state == "done", job.error
    model = local_models.find("tiny-8bit", settings.HOME)
    assert model is not None and model.quantization is not None
    assert (model.quantization["bits"], model.quantization["group_size"]) == (8, 64)
    assert model.capabilities == ("chat", "completion")
    report = QualityReport.objects.get(pk=job.id)
    quality = report.figures["quality"]
    assert report.bits_per_weight == pytest.approx(8.5, abs=0.1)
    assert 0 <= quality["kl"]["median"] <= quality["kl"]["mean"] <= quality["kl"]["max"] < 1
    assert quality["kl"]["p99"] <= quality["kl"]["p999"] <= quality["kl"]["max"]
    assert quality["same_top"] > 0.95
    assert quality["perplexity"]["baseline_se"] > 0
    assert quality["prefill_tokens_per_s"]["quantized"] is None and "not measured" in quality["speed_note"]
    assert stages(job) == ["reference", "quantize", "write", "check", "publish"]
    assert str(settings.HOME) not in json.dumps(job.result)
    assert look(sync_client(), settings.ENV.host_id)["holders"] == []
    # A worker that died after publishing: the next attempt finds the report in the model's directory, for the job's project.
    report.delete()
    assert reports.kept(job.id, "theirs")["model"] == "tiny-8bit"
    assert QualityReport.objects.get(pk=job.id).project == "theirs"


def test_fewer_bits_are_smaller_and_differ_more(worker: Pulse) -> None:
    reports = [run_to_end(worker, order(bits=bits, group_size=32)).result for bits in (8, 4, 2)]

    sizes = [report["bytes"] for report in reports]
    divergences = [report["quality"]["kl"]["mean"] for report in reports]
    assert sizes == sorted(sizes, reverse=True)
    assert divergences == sorted(divergences)


@pytest.mark.parametrize(
    ("fields", "output"),
    [
        ({"method": "awq", "bits": 3, "group_size": 32}, "tiny-awq-3bit-g32"),
        ({"method": "gptq", "bits": 4, "group_size": 32}, "tiny-gptq-4bit-g32"),
        ({"method": "dwq", "bits": 3, "group_size": 32}, "tiny-dwq-3bit-g32"),
        ({"method": "dynamic", "target_bpw": 6.0, "group_size": 32}, "tiny-dynamic-6bpw"),
    ],
    ids=lambda value: value["method"] if isinstance(value, dict) else "",
)
def test_methods_that_read_calibration_text_run_offline_and_publish(worker: Pulse, fields: dict[str, Any], output: str) -> None:
    job = run_to_end(worker, order(**fields))

    assert job.state == "done", job.error
    model = local_models.find(output, settings.HOME)
    assert model is not None and model.quantization is not None and model.dtype == "bfloat16"
    assert job.result["learning"]["method"] == fields["method"] == job.result["scheme"]["method"]
    quality = job.result["quality"]
    assert quality["calibration_sha256"] not in {None, quality["evaluation_sha256"]}
    assert quality["kl"]["mean"] < 1.5 and job.result["bits_per_weight"] < 8
    if "target_bpw" in fields:
        assert job.result["bits_per_weight"] == pytest.approx(fields["target_bpw"], abs=0.3)
    steps = [payload for payload in payloads(job, "stage") if payload["stage"] == "quantize"]
    assert len(steps) >= 2 and steps[-1]["total"] >= 2  # by blocks, layers or batches, not one leap


def test_a_method_that_is_stopped_between_two_blocks_leaves_nothing(worker: Pulse, monkeypatch: pytest.MonkeyPatch) -> None:
    job = order(method="gptq", bits=4, report=False)
    forward, follow, ask = trainer_child.Run._forward, trainer_child.Run._follow, trainer_child.Run._ask
    children: list[int] = []

    def follow_noting_the_child(run: trainer_child.Run, child: trainer_child.Child, wanted: threading.Event) -> Any:
        children.append(child.process.pid)
        return follow(run, child, wanted)

    def cancel_within(run: trainer_child.Run, event: dict[str, Any]) -> None:
        within = event.get("name") == "quantize"
        forward(run, event)
        if within and not run.ctx.cancelled:
            os.kill(children[-1], signal.SIGSTOP)  # so small a model could be done before the wish arrives
            service.cancel(job.id, "test")

    def ask_and_let_go_on(run: trainer_child.Run, child: trainer_child.Child, wish: str) -> None:
        ask(run, child, wish)
        os.kill(child.process.pid, signal.SIGCONT)

    monkeypatch.setattr(trainer_child.Run, "_follow", follow_noting_the_child)
    monkeypatch.setattr(trainer_child.Run, "_forward", cancel_within)
    monkeypatch.setattr(trainer_child.Run, "_ask", ask_and_let_go_on)

    job = run_to_end(worker, job)

    assert job.state == "cancelled"
    assert [path.name for path in MODELS.iterdir()] == ["tiny"]


def test_layers_the_group_size_does_not_divide_stay_and_are_named(worker: Pulse) -> None:
    tiny_model.install(settings.HOME, "narrow", hidden=48)  # widths 48 and 96: neither is a multiple of 64; 96 is of 32

    job = run_to_end(worker, order(model="narrow", group_size=32))

    assert job.state == "done", job.error
    kept = {entry["layer"]: entry for entry in job.result["kept_layers"]}
    assert "model.layers.0.self_attn.q_proj" in kept and "model.layers.0.mlp.down_proj" not in kept
    assert kept["model.layers.0.self_attn.q_proj"]["shape"] == [48, 48]
    assert "does not divide its width 48" in logs(job)


def test_a_model_no_layer_of_which_fits_fails_with_layer_and_sizes(worker: Pulse) -> None:
    tiny_model.install(settings.HOME, "narrow", hidden=48)

    job = run_to_end(worker, order(model="narrow", group_size=64))

    assert (job.state, job.error_code, job.attempts) == ("failed", "nothing_to_quantize", 1)
    assert "group size 64" in job.error and "embed_tokens [491, 48]" in job.error
    assert sorted(path.name for path in MODELS.iterdir()) == ["narrow", "tiny"]


def test_a_method_that_cannot_leave_a_layer_out_names_the_layer_and_its_sizes(worker: Pulse) -> None:
    tiny_model.install(settings.HOME, "narrow", hidden=48)

    job = run_to_end(worker, order(model="narrow", method="gptq", bits=4, group_size=32))

    assert (job.state, job.error_code, job.attempts) == ("failed", "group_size_unsuitable", 1)
    assert "32" in job.error and ", 48]" in job.error
    assert sorted(path.name for path in MODELS.iterdir()) == ["narrow", "tiny"]


def test_a_tokenizer_that_cannot_be_read_is_said_and_nothing_is_published(worker: Pulse) -> None:
    made = order(bits=8)
    (MODELS / "tiny" / "tokenizer.json").write_text("{")
    made.config["revision"] = local_models.scan(settings.HOME)[0].revision
    made.save(update_fields=["config"])

    job = run_to_end(worker, made)

    assert (job.state, job.error_code) == ("failed", "no_tokenizer"), job.error
    assert [model.id for model in local_models.scan(settings.HOME)] == ["tiny"]


def test_a_quantized_model_can_be_quantized_again(worker: Pulse) -> None:
    run_to_end(worker, order(bits=8, output="eight", report=False))

    job = run_to_end(worker, order(model="eight", bits=4, output="four"))

    assert job.state == "done", job.error
    assert local_models.find("four", settings.HOME).quantization["bits"] == 4  # type: ignore[union-attr, index]


def test_a_cancelled_job_leaves_nothing(worker: Pulse, monkeypatch: pytest.MonkeyPatch) -> None:
    job = order(bits=8)
    forward = trainer_child.Run._forward

    def cancel_at_first_event(run: trainer_child.Run, event: dict[str, Any]) -> None:
        forward(run, event)
        if run.ctx.job_id == job.id and not run.ctx.cancelled:
            service.cancel(job.id, "test")

    monkeypatch.setattr(trainer_child.Run, "_forward", cancel_at_first_event)

    job = run_to_end(worker, job)

    assert job.state == "cancelled"
    assert [path.name for path in MODELS.iterdir()] == ["tiny"]
    assert order(bits=8).state == "queued"  # the name is free again


def test_a_killed_child_is_tried_again_and_publishes_once(worker: Pulse, monkeypatch: pytest.MonkeyPatch) -> None:
    job = order(bits=8)
    pids: list[int] = []
    begin = trainer_child.Child.__init__

    def remember(child: trainer_child.Child, task: dict[str, Any]) -> None:
        begin(child, task)
        pids.append(child.process.pid)
        if len(pids) == 1:
            os.kill(child.process.pid, signal.SIGKILL)

    monkeypatch.setattr(trainer_child.Child, "__init__", remember)
    run_to_end(worker, job)
    job.refresh_from_db()
    assert job.state == "queued" and "killed by signal 9" in job.message
    type(job).objects.filter(pk=job.id).update(due_at=job.created_at)

    job = run_to_end(worker, job)

    assert (job.state, len(pids)) == ("done", 2)
    assert sorted(path.name for path in MODELS.iterdir()) == ["tiny", "tiny-8bit"]


def test_a_model_that_changed_since_the_order_is_refused(worker: Pulse) -> None:
    job = order(bits=8)
    config = json.loads((MODELS / "tiny" / "config.json").read_text())
    (MODELS / "tiny" / "config.json").write_text(json.dumps({**config, "rope_theta": 5000.0}))

    job = run_to_end(worker, job)

    assert (job.state, job.error_code) == ("failed", "model_changed")


def test_the_gpu_is_waited_for_and_given_back(worker: Pulse) -> None:
    from mlxplatform.broker.lease import Lease

    chat = Lease(sync_client(), settings.ENV.host_id, mode="shared", cls="interactive")
    chat.acquire()
    job = order(bits=8, report=False)
    thread = start(worker)
    wait_until(lambda: any(w["job"] == job.id for w in look(sync_client(), settings.ENV.host_id)["waiters"]))
    job.refresh_from_db()
    assert job.state == "running"

    chat.release()
    thread.join()

    job.refresh_from_db()
    assert job.state == "done", job.error


def test_mixed_precision_by_sensitivity_reaches_its_target_and_resumes_its_pass(
    worker: Pulse, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = order(target_bpw=6.5)
    forward, killed = trainer_child.Run._follow, []

    def kill_in_the_pass(run: trainer_child.Run, *followed: Any) -> dict[str, Any]:
        path = settings.HOME / "training" / job.id / "sensitivity.jsonl"
        if not killed:
            wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") >= 8)
            followed[0].process.kill()
            followed[0].process.wait()
            killed.append(path.read_bytes().splitlines(keepends=True))
        return forward(run, *followed)

    monkeypatch.setattr(trainer_child.Run, "_follow", kill_in_the_pass)
    run_to_end(worker, job)
    assert job.state == "queued", job.error
    type(job).objects.filter(pk=job.id).update(due_at=job.created_at)
    kept: list[bytes] = []

    def look_before_it_goes(run: trainer_child.Run, *followed: Any) -> dict[str, Any]:
        result = forward(run, *followed)
        kept.extend((settings.HOME / "training" / job.id / "sensitivity.jsonl").read_bytes().splitlines(keepends=True))
        return result

    monkeypatch.setattr(trainer_child.Run, "_follow", look_before_it_goes)

    job = run_to_end(worker, job)

    assert job.state == "done", job.error
    mixed = job.result["mixed"]
    assert mixed["achieved_bpw"] >= 6.5
    assert set(mixed["bits"].values()) == {4, 8}
    assert mixed["calibration_sha256"] != job.result["quality"]["evaluation_sha256"]
    before = [line for line in killed[0] if line.endswith(b"\n")]
    assert kept[: len(before)] == before  # not one finished measurement was made again
    assert len(kept) == 15 * 2
    model = local_models.find("tiny-mixed-6.5bpw", settings.HOME)
    assert model is not None and model.quantization is not None
    assert model.quantization["bits"] == 4 and {8} == {v["bits"] for v in model.quantization.values() if isinstance(v, dict)}
    assert not (settings.HOME / "training" / job.id).exists()
