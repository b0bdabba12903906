"""Data sets from and to a hub: the token stays sealed, a push is one commit however often it is tried, offline is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.test import Client

from mlxplatform.accounts.models import AuditEntry
from mlxplatform.datasets.models import DatasetVersion, HubToken
from mlxplatform.jobs import service
from mlxplatform.jobs.models import Job, JobEvent
from tests.fixtures.dataset_api import all_rows, finished, pairs, post, run_jobs
from tests.fixtures.stub_dataset_hub import COMMIT, StubDatasetHub, stub_dataset_hub

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker")]

TOKEN = "hf_write_me_1234"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StubDatasetHub]:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with stub_dataset_hub(TOKEN) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def put_token(client: Client, token: Any) -> Any:
    return client.put("/api/hub/token", json.dumps({"token": token}), content_type="application/json")


def push(client: Client, version: DatasetVersion, /, **body: Any) -> Any:
    return post(client, f"/api/datasets/{version.dataset_id}/push", {"repo": "me/rows", **body})


def pushed(client: Client, version: DatasetVersion, /, **body: Any) -> Job:
    answer = push(client, version, **body)
    assert answer.status_code == 200, answer.content
    run_jobs()
    return Job.objects.get(pk=answer.json()["job_id"])


def test_a_version_is_pushed_with_its_card(client: Client, hub: StubDatasetHub) -> None:
    put_token(client, TOKEN)
    _, version = finished(client, "sft_qa_pairs", pairs(12))
    job = pushed(client, version, message="first")
    assert job.state == "done", job.error
    assert hub.commits == [("me/rows", "first", ["README.md", "meta.json", "train.jsonl", "valid.jsonl"])]
    assert hub.private == {"me/rows": True}
    assert len(hub.repos["me/rows"]["train.jsonl"].splitlines()) == version.counts["train"]
    assert b"data_files" in hub.repos["me/rows"]["README.md"]
    assert job.result["url"].endswith(COMMIT)
    shown = client.get(f"/api/datasets/{version.dataset_id}").json()["dataset"]["latest"]["report"]["pushed"]
    assert [(entry["repo"], entry["job"]) for entry in shown] == [("me/rows", job.id)]


def test_a_push_that_is_tried_again_makes_no_second_commit(client: Client, hub: StubDatasetHub) -> None:
    put_token(client, "hf_a_wrong_one")
    _, version = finished(client, "sft_qa_pairs", pairs(3))
    job = pushed(client, version)
    assert (job.state, job.error_code) == ("failed", "bad_token") and "PUT /api/hub/token" in job.error
    put_token(client, TOKEN)
    service.retry(job.id, "tester")
    run_jobs()
    job.refresh_from_db()
    assert job.state == "done" and len(hub.commits) == 1
    assert pushed(client, version).state == "done"
    assert len(hub.commits) == 1, "everything was there already"


def test_the_token_is_nowhere_to_be_read(client: Client, hub: StubDatasetHub) -> None:
    answer = put_token(client, TOKEN)
    assert answer.json()["token"]["ends_with"] == "1234"
    _, version = finished(client, "sft_qa_pairs", pairs(2))
    job = pushed(client, version)
    told = [
        answer.content.decode(),
        client.get("/api/hub/token").content.decode(),
        json.dumps([list(map(str, entry)) for entry in AuditEntry.objects.values_list()]),
        json.dumps([list(map(str, event)) for event in JobEvent.objects.filter(job=job).values_list()]),
        client.get(f"/api/jobs/{job.id}").content.decode(),
    ]
    assert not [text for text in told if TOKEN in text]
    with connection.cursor() as cursor:
        cursor.execute("SELECT sealed FROM datasets_hubtoken")
        [(sealed,)] = cursor.fetchall()
    assert TOKEN not in sealed and TOKEN.encode().hex() not in sealed
    assert client.delete("/api/hub/token").json()["token"] is None
    refused = push(client, version)
    assert refused.status_code == 400 and refused.json()["code"] == "no_token"


def test_a_token_sealed_under_another_key_is_said(client: Client, hub: StubDatasetHub, monkeypatch: pytest.MonkeyPatch) -> None:
    put_token(client, TOKEN)
    _, version = finished(client, "sft_qa_pairs", pairs(2))
    monkeypatch.setattr(settings, "SECRET_KEY", "another key than before")
    job = pushed(client, version)
    assert (job.state, job.error_code) == ("failed", "token_unreadable") and "set it again" in job.error


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"repo": "no-owner"}, "repo"),
        ({"repo": "../../etc/passwd"}, "repo"),
        ({"repo": "a/b/c"}, "repo"),
        ({"repo": 5}, "repo"),
        ({"private": "yes"}, "private"),
        ({"message": ""}, "message"),
        ({"version": "2"}, "version"),
        ({"version": 2}, "version"),
        ({"color": 1}, "color"),
    ],
)
def test_bad_pushes_name_the_field(client: Client, body: dict[str, Any], field: str) -> None:
    put_token(client, TOKEN)
    _, version = finished(client, "sft_qa_pairs", pairs(2))
    before = Job.objects.count()
    answer = push(client, version, **body)
    assert answer.status_code in (400, 404) and answer.json()["field"] == field, answer.content
    assert Job.objects.count() == before


@pytest.mark.parametrize("token", ["", "short", "with space in it", 5, None, "x" * 600, "hf_\u00e4\u00f6\u00fc_token"])
def test_bad_tokens_are_refused(client: Client, token: Any) -> None:
    answer = put_token(client, token)
    assert answer.status_code == 400 and answer.json()["field"] == "token"
    assert not HubToken.objects.exists()


def test_offline_is_said_at_once(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    put_token(client, TOKEN)
    _, version = finished(client, "sft_qa_pairs", pairs(2))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    job = pushed(client, version)
    assert (job.state, job.error_code) == ("failed", "offline") and "cannot be reached" in job.error
    asked = post(client, "/api/datasets/import", {"hub": "me/nothing"})
    run_jobs()
    job = Job.objects.get(pk=asked.json()["job_id"])
    assert (job.state, job.error_code) == ("failed", "offline")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refused = push(client, version)
    assert refused.status_code == 503 and refused.json()["code"] == "offline"


def test_a_data_set_of_the_hub_is_imported_by_name(client: Client, hub: StubDatasetHub) -> None:
    put_token(client, TOKEN)
    row = {"prompt": "a", "completion": "b"}
    raw = json.dumps(row).encode() + b"\n"
    hub.repos["them/set"] = {
        "data/train.jsonl": raw * 3,
        "data/validation.jsonl": raw,
        "README.md": b"about",
        "weights.bin": b"never fetched",
    }
    answer = post(client, "/api/datasets/import", {"hub": "them/set"})
    run_jobs()
    version = DatasetVersion.objects.get(job=answer.json()["job_id"])
    assert version.state == "ready", version.error
    assert (version.counts["train"], version.counts["valid"]) == (3, 1) and all_rows(client, version) == [row] * 4
    assert not [path for path in hub.seen if "weights.bin" in path]
    assert version.report["source"] == {"hub": "them/set", "revision": COMMIT}
    assert f"Bearer {TOKEN}" in hub.authorized
    missing = post(client, "/api/datasets/import", {"hub": "them/other"})
    run_jobs()
    job = Job.objects.get(pk=missing.json()["job_id"])
    assert (job.state, job.error_code) == ("failed", "not_found") and "them/other" in job.error


def test_a_person_pushes_from_the_page(admin_client: Client, hub: StubDatasetHub) -> None:
    _, version = finished(admin_client, "sft_qa_pairs", pairs(3))
    page = f"/console/datasets/{version.dataset_id}"
    assert "Push version 1" in admin_client.get(page).content.decode()
    order = {"version": "1", "repo": "me/rows", "token": TOKEN}
    refused = admin_client.post(f"{page}/push", {**order, "repo": "nowhere"}, follow=True)
    assert "owner/name, of letters" in refused.content.decode() and not hub.commits
    started = admin_client.post(f"{page}/push", {**order, "token": ""})
    assert "/console/jobs/job_" in started["Location"], "the token of the first try is kept"
    run_jobs()
    assert hub.commits and hub.private == {"me/rows": False}
    shown = admin_client.get(page).content.decode()
    assert "ending in 1234" in shown and TOKEN not in shown and "Pushed to" in shown
    assert admin_client.post(f"{page}/push", {**order, "version": "9"}).status_code == 404


def test_a_person_imports_from_the_page(admin_client: Client, hub: StubDatasetHub) -> None:
    from django.core.files.uploadedfile import SimpleUploadedFile

    raw = b'{"prompt":"a","completion":"b"}\n{"prompt":"a","completion":"b"}\nnonsense\n'
    form = {"file": SimpleUploadedFile("mine.jsonl", raw), "name": "mine", "distinct": "on", "on_bad_rows": "skip"}
    answer = admin_client.post("/console/datasets/import", form)
    run_jobs()
    version = DatasetVersion.objects.get()
    assert version.dataset_id in answer["Location"] and version.dataset.name == "mine"
    assert version.counts["accepted"] == 1 and version.counts["dropped"] == {"duplicate": 1, "not_json": 1}
    assert "1 of 3 rows could not be used" in admin_client.get(answer["Location"]).content.decode()
    for form, words in (
        ({}, "exactly one source"),
        ({"hub": "x/y", "path": "z"}, "exactly one source"),
        ({"path": "/etc"}, "/etc"),
    ):
        refused = admin_client.post("/console/datasets/import", form)
        assert refused.status_code == 400 and words in refused.content.decode()
    assert DatasetVersion.objects.count() == 1
