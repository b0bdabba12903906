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
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.pulse import Pulse
from mlxplatform.library import local_adapters, local_models
from mlxplatform.training import finetuning
from mlxplatform.training.models import Adapter
from tests.engine.test_trainer_finetune import CODE, answer_of, upload
from tests.fixtures import tiny_model
from tests.fixtures.trainer_jobs import run_to_end, trainer_worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker")]


@pytest.fixture(autouse=True)
def home() -> Iterator[None]:
    tiny_model.install(settings.HOME, "tiny", steps=tiny_model.TRAINED_STEPS)
    yield
    for name in ("models", "adapters", "training"):
        shutil.rmtree(settings.HOME / name, ignore_errors=True)


@pytest.fixture
def worker() -> Iterator[Pulse]:
    with trainer_worker() as pulse:
        yield pulse


def trained(worker: Pulse, **fields: Any) -> Adapter:
    order = finetuning.check({"model": "tiny", "training_file": upload([CODE] * 8), "iters": 60, **fields}, None)
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


@pytest.mark.parametrize("kind", ["lora", "dora"])
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


def test_orders_about_adapters_are_refused_by_field(worker: Pulse) -> None:
    adapter = trained(worker, iters=1)
    refused = {
        "/api/finetune/fuse": [({"adapter": "ad_nothing"}, "adapter"), ({"adapter": adapter.id, "output": "tiny"}, "output")],
        "/api/finetune/merge": [
            ({"adapters": [adapter.id]}, "adapters"),
            ({"adapters": [adapter.id, "../../etc"]}, "adapters"),
            ({"adapters": "x"}, "adapters"),
        ],
        "/api/finetune/export": [({"adapter": adapter.id, "format": "gguf"}, "format"), ({}, "adapter")],
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
