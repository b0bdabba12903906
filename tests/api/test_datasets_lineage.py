"""Where a dataset comes from and what was made of it, over HTTP and on the pages: each a link away from the next."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from mlxplatform.batches.models import Batch
from mlxplatform.datasets.models import Dataset
from mlxplatform.jobs import service
from mlxplatform.jobs.models import Job
from mlxplatform.training.models import Adapter
from tests.fixtures.dataset_api import finished, pairs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker")]

LOSS = {"base": {"loss": 3.5}, "tuned": {"loss": 2.25}, "loss_gain": 1.25}


def ended(kind: str, config: dict[str, Any], result: dict[str, Any], project: str = "default") -> Job:
    job = service.submit(kind, config, project=project)
    Job.objects.filter(pk=job.id).update(state="done", result=result)
    return job


def adapter_of(job: Job, number: int, dataset: str = "") -> Adapter:
    lineage = {"dataset": dataset, "version": 1} if dataset else {}
    return Adapter.objects.create(
        id=f"ad_{number}",
        name=f"ft:tiny:local:x:{number}",
        base_model="tiny",
        base_revision="r",
        method="sft",
        fine_tune_type="lora",
        job=job.id,
        lineage=lineage,
    )


def test_a_dataset_knows_its_fine_tunes_their_adapters_and_how_those_were_measured(admin_client: Client) -> None:
    client = admin_client
    _, version = finished(client, "sft_qa_pairs", pairs(3))
    data = {"dataset": version.dataset_id, "version": 1}
    tune = ended("finetune", {"data": data, "model": "tiny"}, {})
    made = adapter_of(tune, 1, version.dataset_id)
    foreign = adapter_of(ended("finetune", {"data": {"training_file": "file-1"}, "model": "tiny"}, {}), 2)
    held = {"data": data, "part": "valid", "measures": ["loss", "exact_match"]}
    first = ended("evaluate_adapter", {"adapter": made.id, **held}, {"name": made.name, "loss": LOSS, "examples": [{"x": 1}]})
    elsewhere = {"data": {"training_file": "file-9"}, "part": "train"}
    second = ended("evaluate_adapter", {"adapter": made.id, **elsewhere}, {"name": made.name})
    third = ended(
        "evaluate_adapter", {"adapter": foreign.id, **held}, {"name": foreign.name, "exact_match": {"base": 0, "tuned": 1}}
    )
    ended("evaluate_adapter", {"adapter": foreign.id, **elsewhere}, {})
    ended("evaluate_adapter", {"adapter": made.id, **held}, {}, project="other")

    known = client.get(f"/api/datasets/{version.dataset_id}").json()["lineage"]
    [trained] = known["trained"]
    assert (trained["job_id"], trained["version"], trained["adapter"]["id"]) == (tune.id, 1, made.id)
    assert [found["job_id"] for found in known["evaluated"]] == [third.id, second.id, first.id]
    assert known["evaluated"][2]["figures"] == {"loss": LOSS} and known["evaluated"][2]["data"] == data

    page = client.get(f"/console/datasets/{version.dataset_id}").content.decode()
    for address in (f"/console/models/adapters/{made.id}", f"/console/jobs/{tune.id}", f"/console/jobs/{third.id}"):
        assert f'href="{address}"' in page, address
    assert "loss 3.500 → 2.250" in page
    back = client.get(f"/console/models/adapters/{made.id}").content.decode()
    assert f'href="/console/datasets/{version.dataset_id}?version=1"' in back


def test_a_dataset_of_a_batchs_answers_names_the_batch(client: Client) -> None:
    job = ended("batch", {}, {})
    batch = Batch.objects.create(
        id="batch_1", dialect="openai", endpoint="/v1/chat/completions", job=job, expires_at=timezone.now(), project="default"
    )
    Batch.objects.create(
        id="batch_2", dialect="openai", endpoint="/v1/chat/completions", expires_at=timezone.now(), project="other"
    )
    _, version = finished(client, "sft_qa_pairs", pairs(1))
    version.inputs = {"batch_id": f" {batch.id} "}
    version.save()
    known = client.get(f"/api/datasets/{version.dataset_id}").json()["lineage"]
    assert known["batches"] == [{"batch_id": batch.id, "job_id": job.id, "by": 1}] and known["origins"] == []
    version.inputs = {"batch_id": "batch_2"}
    version.save()
    assert client.get(f"/api/datasets/{version.dataset_id}").json()["lineage"]["batches"] == []
    assert Dataset.objects.count() == 1
