"""Adapters after training: fused, merged and exported, with the effect they had."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from safetensors.numpy import load_file

from mlxplatform.files import service as files
from mlxplatform.jobs.context import JobContext
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.pulse import Pulse
from mlxplatform.library import local_adapters, local_models, starters
from mlxplatform.training import finetuning
from mlxplatform.training.models import Adapter
from tests.engine.test_trainer_finetune import CODE, answer_of, upload
from tests.fixtures import tiny_model
from tests.fixtures.trainer_jobs import payloads, run_to_end
from tests.fixtures.training_data import TROUBLES, spoil
from workers.tasks import adapters

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker")]


@pytest.fixture(autouse=True)
def home() -> Iterator[None]:
    tiny_model.install(settings.HOME, "tiny", steps=tiny_model.TRAINED_STEPS)
    yield
    for name in ("models", "adapters", "training"):
        shutil.rmtree(settings.HOME / name, ignore_errors=True)


def codes() -> list[dict[str, Any]]:
    """Eight rows to split."""
    answer = CODE["messages"][1:]
    return [{"messages": [{"role": "user", "content": f"code {n}?"}, *answer]} for n in range(8)]


def trained(worker: Pulse, rows: list[dict[str, Any]] | None = None, **fields: Any) -> Adapter:
    order = finetuning.check({"model": "tiny", "training_file": upload(rows or [CODE] * 8), "iters": 60, **fields}, None)
    job = run_to_end(worker, finetuning.submit(order, project="default", created_by="test"))
    assert job.state == "done", job.error
    return Adapter.objects.get(job=job.id)


def ordered(path: str, body: dict[str, Any]) -> Any:
    answer = Client().post(path, json.dumps(body), content_type="application/json")
    return answer.status_code, answer.json()


def run_ordered(worker: Pulse, path: str, body: dict[str, Any]) -> Job:
    status, answer = ordered(path, body)
    assert status == 200, answer
    job = run_to_end(worker, Job.objects.get(pk=answer["job_id"]))
    assert job.state == "done", job.error
    return job


@pytest.mark.parametrize("kind", ["lora", pytest.param("dora", marks=pytest.mark.drill)])
def test_a_fused_model_says_what_base_and_adapter_say(worker: Pulse, kind: str) -> None:
    adapter = trained(worker, fine_tune_type=kind)

    job = run_ordered(worker, "/api/finetune/fuse", {"adapter": adapter.name, "output": "fused"})

    model = local_models.find("fused", settings.HOME)
    assert model is not None and model.provenance["adapter"] == adapter.id
    assert job.result["layers"] == 14
    shutil.rmtree(settings.HOME / "models" / "tiny")
    model.path.rename(settings.HOME / "models" / "tiny")
    assert answer_of(None, "code?") == "ZX-81"


def test_a_merge_is_the_sum_of_its_parts(worker: Pulse) -> None:
    first, second = trained(worker, seed=1), trained(worker, rank=4, target_modules=["q_proj", "o_proj"], seed=2)

    job = run_ordered(worker, "/api/finetune/merge", {"adapters": [first.id, second.id], "weights": [1.0, 0.5]})

    merged = local_adapters.find(job.result["adapter"], settings.HOME)
    assert merged is not None and (merged.rank, merged.scale) == (12, 1.0)
    assert job.result["stats"]["layersMerged"] == 4 and job.result["stats"]["layersOnlyInOne"] == 10
    parts = [load_file(settings.HOME / "adapters" / a.id / "adapters.safetensors") for a in (first, second)]
    whole = load_file(merged.path / "adapters.safetensors")
    layer = "model.layers.0.self_attn.q_proj"
    expected = sum(
        20.0 * weight * part[f"{layer}.lora_a"] @ part[f"{layer}.lora_b"] for part, weight in zip(parts, (1.0, 0.5), strict=True)
    )
    assert whole[f"{layer}.lora_a"] @ whole[f"{layer}.lora_b"] == pytest.approx(expected, abs=1e-4)
    # A worker that died after publishing: the next attempt finds all it needs in the directory, whatever became of the parts.
    Adapter.objects.filter(pk__in=[merged.id, first.id]).delete()
    again = adapters.merge(JobContext(job))
    assert {**again, "stats": job.result["stats"]} == job.result
    row = Adapter.objects.get(pk=merged.id)
    assert row.parents == [first.id, second.id] and local_adapters.find_name(row.name, settings.HOME) == merged


def test_an_export_is_what_peft_reads(worker: Pulse) -> None:
    adapter = trained(worker, iters=2)

    job = run_ordered(worker, "/api/finetune/export", {"adapter": adapter.id})

    by_name = {entry["filename"]: files.find(entry["id"], None) for entry in job.result["files"]}
    config = json.loads(files.open_blob(by_name["adapter_config.json"]).read())
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (8, 160.0, "LORA")
    assert config["target_modules"] == sorted(["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
    path = settings.HOME / "exported.safetensors"
    path.write_bytes(files.open_blob(by_name["adapter_model.safetensors"]).read())
    ours = load_file(settings.HOME / "adapters" / adapter.id / "adapters.safetensors")
    theirs = load_file(path)
    name = "model.layers.1.mlp.down_proj"
    assert (theirs[f"base_model.model.{name}.lora_A.weight"] == ours[f"{name}.lora_a"].T).all()
    assert (theirs[f"base_model.model.{name}.lora_B.weight"] == ours[f"{name}.lora_b"].T).all()


#: The kinds that take another ten seconds each and differ only in the trainer.
OTHER_KINDS = [pytest.param(kind, marks=pytest.mark.drill) for kind in ("dora", "full")]


@pytest.mark.parametrize("kind", ["lora", *OTHER_KINDS])
def test_a_gguf_export_reads_back_as_the_fine_tuned_model(worker: Pulse, kind: str) -> None:
    adapter = trained(worker, fine_tune_type=kind, iters=60 if kind != "full" else 100)

    job = run_ordered(worker, "/api/finetune/export", {"adapter": adapter.name, "format": "gguf"})

    (entry,) = job.result["files"]
    path = settings.HOME / "exported.gguf"
    path.write_bytes(files.open_blob(files.find(entry["id"], None)).read())
    shutil.rmtree(settings.HOME / "models")
    starters.import_gguf(path, settings.HOME / "models", "tiny", source="export")
    assert answer_of(None, "code?") == "ZX-81"
    assert local_models.find("tiny", settings.HOME).chat_template == tiny_model.CHAT_TEMPLATE  # type: ignore[union-attr]


def test_what_gguf_cannot_hold_is_501_with_the_reason(worker: Pulse) -> None:
    adapter = trained(worker, iters=1)
    path = settings.HOME / "models" / "tiny" / "config.json"
    config = json.loads(path.read_text())
    for change, word in (
        ({"model_type": "qwen3"}, "qwen3"),
        ({"rope_scaling": {"factor": 2.0}}, "rope"),
        ({"head_dim": 8}, "heads"),
    ):
        path.write_text(json.dumps({**config, **change}))
        Adapter.objects.filter(pk=adapter.id).update(base_revision=local_models.find("tiny", settings.HOME).revision)  # type: ignore[union-attr]
        status, answer = ordered("/api/finetune/export", {"adapter": adapter.id, "format": "gguf"})
        assert (status, answer["code"]) == (501, "unsupported_execution") and word in answer["error"]


def test_an_evaluation_measures_base_and_adapter_on_rows_set_apart(worker: Pulse) -> None:
    adapter = trained(worker, codes(), valid_fraction=0.25, iters=300)

    job = run_ordered(worker, "/api/finetune/evaluate", {"adapter": adapter.id, "measures": ["loss"]})

    loss = job.result["loss"]
    assert loss["rows"]["rows_used"] == 2  # a quarter of eight, as the run split them
    assert loss["tuned"]["loss"] < loss["base"]["loss"] / 5
    assert loss["loss_gain"] == pytest.approx(loss["base"]["loss"] - loss["tuned"]["loss"], rel=1e-3)
    assert loss["tuned"]["token_accuracy"] == 1.0 and loss["base"]["tokens"] == loss["tuned"]["tokens"] > 0
    adapter.refresh_from_db()
    assert adapter.metrics["evaluation"]["loss"] == loss and adapter.metrics["evaluation"]["job_id"] == job.id
    assert adapter.metrics["final_val"]["loss"] == pytest.approx(loss["tuned"]["loss"], rel=1e-4)  # counted as the run counts


def test_rows_of_an_evaluation_that_are_gone_are_blamed_by_field(worker: Pulse) -> None:
    adapter = trained(worker, codes(), valid_fraction=0.25, iters=1)
    held = upload([CODE])
    status, answer = ordered("/api/finetune/evaluate", {"adapter": adapter.id, "measures": ["loss"], "file": held})
    assert status == 200, answer
    for file in (held, adapter.config["training_file"]):
        files.delete(files.find(file, None))

    job = run_to_end(worker, Job.objects.get(pk=answer["job_id"]))
    refused = ordered("/api/finetune/evaluate", {"adapter": adapter.id, "measures": ["loss"]})

    assert (job.state, job.error_code, payloads(job, "failed")[-1]["param"]) == ("failed", "file_not_found", "file")
    assert (refused[0], refused[1]["code"], refused[1]["field"]) == (400, "no_held_out_rows", "file")


def test_an_earlier_step_is_measured_fused_merged_and_exported_by_its_name(worker: Pulse) -> None:
    adapter = trained(worker, codes(), valid_fraction=0.25, iters=12, steps_per_save=4, num_layers=1)
    name, last = f"{adapter.name}:ckpt-step-4", f"{adapter.name}:ckpt-step-12"

    measured = run_ordered(worker, "/api/finetune/evaluate", {"adapter": name, "measures": ["loss"]})
    fused = run_ordered(worker, "/api/finetune/fuse", {"adapter": name})
    merged = run_ordered(worker, "/api/finetune/merge", {"adapters": [name, last], "weights": [1.0, -1.0], "suffix": "A:b"})
    exported = run_ordered(worker, "/api/finetune/export", {"adapter": name})

    assert measured.result["adapter"] == f"{adapter.id}-step-4" and measured.result["name"] == name
    shown = Client().get(f"/api/adapters/{adapter.id}").json()["adapter"]
    losses = {one["step"]: one["evaluation"] and one["evaluation"]["loss"] for one in shown["checkpoints"]}
    assert losses == {8: None, 4: measured.result["loss"]} and "evaluation" not in shown["metrics"]
    model = local_models.find(fused.result["model"], settings.HOME)
    assert model is not None and model.id.endswith("-step-4") and model.provenance["adapter"] == f"{adapter.id}-step-4"
    made = Adapter.objects.get(job=merged.id)
    assert made.parents == [f"{adapter.id}-step-4", adapter.id] and made.name.startswith("ft:tiny:local:a-b:")
    own = load_file(settings.HOME / "adapters" / adapter.id / "checkpoints" / "step-4" / "adapters.safetensors")
    files_of = {entry["filename"]: files.open_blob(files.find(entry["id"], None)).read() for entry in exported.result["files"]}
    (settings.HOME / "exported.safetensors").write_bytes(files_of["adapter_model.safetensors"])
    theirs = load_file(settings.HOME / "exported.safetensors")
    layer = "model.layers.1.mlp.down_proj"
    assert (theirs[f"base_model.model.{layer}.lora_B.weight"] == own[f"{layer}.lora_b"].T).all()
    assert json.loads(files_of["adapter_config.json"])["layers_to_transform"] == [1]
    for path, body in (
        ("/api/finetune/merge", {"adapters": [last, adapter.id]}),  # two names of one
        ("/api/finetune/merge", {"adapters": [name, last], "suffix": "!!"}),
        ("/api/finetune/fuse", {"adapter": f"{adapter.name}:ckpt-step-5"}),
    ):
        assert ordered(path, body)[0] in {400, 404}


def test_orders_about_adapters_are_refused_by_field(worker: Pulse) -> None:
    adapter, held = trained(worker, iters=1), upload([CODE])
    unusable = [upload([{"foo": 1}]), *(upload([CODE]) for _ in TROUBLES)]
    for file, trouble in zip(unusable[1:], TROUBLES, strict=True):
        spoil(file, trouble)
    refused = {
        "/api/finetune/fuse": [({"adapter": "ad_nothing"}, "adapter"), ({"adapter": adapter.id, "output": "tiny"}, "output")],
        "/api/finetune/merge": [
            ({"adapters": [adapter.id]}, "adapters"),
            ({"adapters": [adapter.id, "../../etc"]}, "adapters"),
            ({"adapters": "x"}, "adapters"),
        ],
        "/api/finetune/export": [({"adapter": adapter.id, "format": "onnx"}, "format"), ({}, "adapter")],
        "/api/finetune/evaluate": [
            ({"adapter": adapter.id}, "file"),  # the run set nothing apart
            ({"adapter": adapter.id, "file": "file-none"}, "file"),
            *(({"adapter": adapter.id, "file": spoiled}, "file") for spoiled in unusable),
            ({"adapter": adapter.id, "file": held, "dataset": "ds_1"}, "file"),
            ({"adapter": adapter.id, "file": held, "measures": ["bleu"]}, "measures"),
            ({"adapter": adapter.id, "file": held, "judge_model": "tiny"}, "judge_model"),
            ({"adapter": adapter.id, "file": held, "measures": ["judge"], "judge_model": "../x"}, "judge_model"),
        ],
    }
    for path, cases in refused.items():
        for body, field in cases:
            status, answer = ordered(path, body)
            assert status in {400, 404, 409} and answer["field"] == field, (path, body, answer)


def test_a_deleted_adapter_is_gone(worker: Pulse) -> None:
    adapter = trained(worker, iters=1)

    assert Client().get(f"/api/adapters/{adapter.name}").json()["adapter"]["id"] == adapter.id
    assert Client().delete(f"/api/adapters/{adapter.id}").json()["ok"]
    assert Client().get(f"/api/adapters/{adapter.id}").status_code == 404
    assert not (settings.HOME / "adapters" / adapter.id).exists()
