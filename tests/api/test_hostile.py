"""What somebody tries who means no good: another project's ids, names that are operators, values no database takes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from mlxplatform.accounts import identity, keys
from mlxplatform.accounts.keys import Quota
from mlxplatform.datasets.inputs import coerce
from mlxplatform.datasets.models import Dataset
from mlxplatform.datasets.roots import UnknownFolder, entry_in_roots
from mlxplatform.datasets.templates.registry import TEMPLATES
from mlxplatform.files import blobs, uploads
from mlxplatform.files.models import StoredFile, UploadPart
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import service
from mlxplatform.training.models import TrainingRun
from mlxplatform.webhooks.models import Webhook
from mlxplatform.webhooks.service import may_be_private

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker")]


@pytest.fixture(autouse=True)
def nothing_remembered() -> None:
    identity.forget()


def holder(project: str, **options: Any) -> Client:
    """A client with a key of that project."""
    _, secret = keys.create(project, project=project, **options)
    identity.forget()
    return Client(headers={"authorization": f"Bearer {secret}"})


def post(client: Client, path: str, body: Any) -> Any:
    return client.post(path, json.dumps(body), content_type="application/json")


def test_the_cursor_of_another_projects_dataset_is_as_unknown_as_any(client: Client) -> None:
    theirs = Dataset.objects.create(name="theirs", project="red")
    blue = holder("blue")
    answers = [blue.get(f"/api/datasets?after={cursor}") for cursor in (theirs.id, "ds_none")]
    assert [answer.status_code for answer in answers] == [400, 400]
    assert answers[0].content == answers[1].content


@pytest.mark.parametrize("path", ["/api/jobs/%00", "/v1/files/a%00b", "/v1/messages/batches/%00/results", "/%00"])
def test_a_nul_in_a_path_leads_nowhere(client: Client, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, b"NUL" in answer.content) == (404, True)


def test_a_nul_in_a_query_is_refused_by_name(client: Client) -> None:
    for name in ("kind", "after"):
        answer = client.get(f"/api/jobs?limit=5&{name}=a%00b&{name}=c")
        assert (answer.status_code, answer.json()["field"]) == (400, name)


@pytest.mark.parametrize("name", ["a__isnull", "a__range", "a__in", "a__regex", 'a"b', "0", "a__b"])
def test_metadata_names_are_no_operators(client: Client, name: str) -> None:
    job = service.submit("finetune", {"model": "tiny", "data": {}})
    TrainingRun.objects.create(job=job.id, surface={"metadata": {"a": "1"}})
    answer = client.get("/v1/fine_tuning/jobs", {f"metadata[{name}]": "1"})
    assert (answer.status_code, answer.json()["data"]) == (200, [])


@pytest.mark.parametrize("raw", ["[NaN]", '{"a": Infinity}', '"\\ud800"', "[" * 100_000])
def test_json_in_a_text_is_as_strict_as_a_body(raw: str) -> None:
    template, field = next((t, f) for t in TEMPLATES.values() for f in t.fields if f.type == "json")
    with pytest.raises(Refusal) as refused:
        coerce(template, {**{f.name: f.default or "1" for f in template.fields}, field.name: raw})
    assert refused.value.param == f"inputs.{field.name}"


def test_the_home_of_nobody_is_no_folder() -> None:
    with pytest.raises(UnknownFolder):
        entry_in_roots("~no-such-user-here/data")


def test_a_bulk_request_names_a_bounded_number_of_jobs(client: Client) -> None:
    answer = post(client, "/api/jobs/bulk/cancel", {"ids": ["x"] * 300_000})
    assert (answer.status_code, answer.json()["field"]) == (400, "ids")


def test_only_an_administrator_lets_the_server_call_into_its_network() -> None:
    users = get_user_model().objects
    for name, group in (("root", "admin"), ("guest", "member")):
        users.create_user(name).groups.add(Group.objects.get_or_create(name=group)[0])
    makers = ("local", "user:root", "user:guest", "user:nobody", "key:1")
    assert [may_be_private(Webhook(created_by=by)) for by in makers] == [True, True, False, False, False]


def test_every_way_to_bring_a_file_minds_the_keys_storage() -> None:
    small = holder("small", quota=Quota(storage_bytes=10))
    post(small, "/api/memory/init", {"name": "small"})
    one = {"custom_id": "a", "params": {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}}
    rows = SimpleUploadedFile("rows.jsonl", b'{"prompt": "a", "completion": "b"}\n')
    answers = [
        post(small, "/api/memory/import", {"vault": "small", "format": "markdown", "content": "# long enough to be refused"}),
        post(small, "/v1/messages/batches", {"requests": [one]}),
        small.post("/api/datasets/import", {"file": rows}),
    ]
    assert [answer.status_code for answer in answers] == [400, 400, 400]
    assert all(b"of its 10" in answer.content for answer in answers), answers
    assert not StoredFile.objects.exists()


def test_the_parts_of_an_upload_cannot_fill_the_disk(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PART_LIMIT", 100)
    before = set(blobs.stored_ids())
    order = {"filename": "a.txt", "purpose": "user_data", "mime_type": "text/plain", "bytes": 50}
    path = f"/v1/uploads/{post(client, '/v1/uploads', order).json()['id']}/parts"
    sent = [client.post(path, {"data": SimpleUploadedFile("part", b"x" * 100)}).status_code for _ in range(4)]
    assert sent == [200, 200, 400, 400]
    assert set(blobs.stored_ids()) - before == set(UploadPart.objects.values_list("id", flat=True))
