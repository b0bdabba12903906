"""Datasets over HTTP: what nobody would send on purpose, and what must not be lost without a word."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from django.contrib.admin.utils import quote
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from mlxplatform.datasets.models import Dataset, DatasetVersion
from mlxplatform.files.models import StoredFile
from mlxplatform.jobs.models import Job
from tests.fixtures.dataset_api import (
    CHAT,
    Upload,
    all_rows,
    as_lines,
    download,
    export,
    finished,
    pairs,
    post,
    upload,
)
from tests.fixtures.scripted_host import ScriptedRuntime, runtime

__all__ = ["runtime", "upload"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker")]

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
QUESTION, ANSWER = CHAT["messages"]
CALLED = {"messages": [QUESTION, {"role": "assistant", "content": None, "tool_calls": [CALL]}, ANSWER]}
PREFERENCE = {"prompt": "p", "chosen": "x", "rejected": "y"}


# Imports ------------------------------------------------------------------------------------------------------------


def test_columns_of_any_name_are_left_out_and_named_in_one_line(client: Client, upload: Upload) -> None:
    names = ['say "x"', "a\n## evil", "back\\slash", "nul\x00", "k" * 100_000]
    job, version = upload(as_lines({"text": "a", **dict.fromkeys(names, 1)}, {"text": "b"}))
    assert job.state == "done", job.error
    assert set(version.report["left_out"]) == {'say "x"', "a ## evil", "back\\slash", "nul", "k" * 60 + "…"}
    card = download(client, version.dataset_id, "README.md").body.decode()
    assert "\n## evil" not in card and len(card) < 3_000


def test_errors_about_long_names_are_short(upload: Upload) -> None:
    job, version = upload(as_lines(*[{"k" * 100_000: n} for n in range(30)]))
    assert job.error_code == "bad_rows" and len(job.error) < 12_000 and len(json.dumps(version.report)) < 60_000


def test_half_of_a_row_is_not_dropped_to_make_a_conversation_of_it(client: Client, upload: Upload) -> None:
    job, version = upload(as_lines(CHAT, {**PREFERENCE}, {"prompt": "a", "completion": "b", "metadata": {"n": 1}}))
    assert "line 2: a preference among conversations, whose rejected answer would be lost" in job.error
    assert "1 messages" in job.error and "1 dpo" in job.error and not version.files
    kept, version = upload(
        as_lines(CHAT, PREFERENCE, {"prompt": "a", "completion": "b", "metadata": {"n": 1}}), on_bad_rows="skip"
    )
    assert kept.state == "done" and version.counts["dropped"] == {"mixed_forms": 1}
    assert [row.get("metadata") for row in all_rows(client, version)] == [None, {"n": 1}]


def test_a_text_that_becomes_no_whole_conversation_is_named(upload: Upload) -> None:
    job, _ = upload(as_lines(CHAT, {"text": "<|im_start|>user\nq<|im_end|>"}, {"text": "Note: <|im_start|>user\nq"}))
    assert "line 2: as a conversation, messages has no assistant message" in job.error
    assert "line 3: plain text among conversations" in job.error


@pytest.mark.parametrize(
    "columns",
    [
        {"user": "a"},
        {"user": "a", "completion": "b"},
        {"system": "s", "prompt": "a", "completion": "b"},
        {"chosen": "a", "text": "b"},
    ],
)
def test_columns_that_would_be_lost_are_refused(client: Client, columns: dict[str, str]) -> None:
    answer = post(client, "/api/datasets/import", {"hub": "a/b", "columns": columns})
    assert answer.status_code == 400 and answer.json()["field"] == "columns" and "user" in answer.json()["error"]


def test_an_upload_sent_again_is_the_same_import(client: Client) -> None:
    def send(raw: bytes, **fields: str) -> Any:
        body = {"file": SimpleUploadedFile("rows.jsonl", raw), **fields}
        return client.post("/api/datasets/import", body, headers={"idempotency-key": "k"})

    first = send(as_lines(CHAT), name="x").json()
    assert first["ok"] and send(as_lines(CHAT), name="x").json() == first
    for other in (send(as_lines(CHAT, CHAT), name="x"), send(as_lines(CHAT), name="y")):
        assert (other.status_code, other.json()["code"]) == (400, "idempotency_conflict")
    assert StoredFile.objects.filter(deleted_at=None).count() == Dataset.objects.count() == Job.objects.count() == 1


@pytest.mark.parametrize(
    "pasted",
    [
        '[{"input": "q", "output": "a"},\n {"input": null, "output": {"x": 1}}]',
        '\ufeff{"input": "q", "output": "a"}\r\n{"output": {"x": 1}, "input": "q"}',
    ],
    ids=["an array", "lines"],
)
def test_pasted_rows_are_read_as_files_are(client: Client, pasted: str) -> None:
    _, version = finished(client, "format_conversion", {"input_jsonl": pasted})
    assert all_rows(client, version) == [CHAT] and version.counts["dropped"] == {"not_text": 1}


def test_a_byte_order_mark_may_be_pasted_along(client: Client) -> None:
    _, version = finished(client, "sft_qa_pairs", {"pairs_text": "\ufeffQ: q\nA: a"})
    assert all_rows(client, version) == [CHAT]


def test_the_index_of_an_import_is_no_file_for_people(admin_client: Client, upload: Upload) -> None:
    _, version = upload(as_lines(CHAT))
    answer = admin_client.get(f"/api/datasets/{version.dataset_id}/files/rows.index")
    assert answer.status_code == 404 and "rows.index" not in answer.json()["error"]
    page = admin_client.get(f"/admin/datasets/dataset/{quote(version.dataset_id)}/change/").content.decode()
    assert "train.jsonl" in page and "rows.index" not in page


# Exports ------------------------------------------------------------------------------------------------------------


def test_rows_without_an_equivalent_are_counted(client: Client, upload: Upload) -> None:
    _, version = upload(as_lines(CHAT, CALLED, CHAT))
    for wanted, kept, lost in (("sharegpt", 2, "1"), ("jsonl", 3, "0"), ("messages", 3, "0")):
        answer = client.get(f"/api/datasets/{version.dataset_id}/export", {"format": wanted})
        assert answer["X-Rows-Left-Out"] == lost
        assert len(export(client, version.dataset_id, format=wanted).splitlines()) == kept
    refused = client.get(f"/api/datasets/{version.dataset_id}/export", {"format": "dpo"})
    assert (
        refused.status_code == 400
        and refused.json()["field"] == "format"
        and "its own format is messages" in refused.json()["error"]
    )


def test_a_csv_of_conversations_comes_back_with_its_tools(client: Client, upload: Upload) -> None:
    rows = [{**CALLED, "tools": [{"type": "function", "function": {"name": "f"}}]}, CHAT]
    _, version = upload(as_lines(*rows))
    _, again = upload(export(client, version.dataset_id, format="csv"), "rows.csv")
    assert all_rows(client, again) == rows


def test_a_difference_is_of_characters(client: Client, runtime: ScriptedRuntime) -> None:
    runtime.say = lambda request: "The Rhine." if runtime.started.total() < 2 else "the  RHINE."
    _, first = finished(client, "cot_synthesis", {"questions": "one"}, seed=1)
    _, second = finished(client, "cot_synthesis", {"questions": "one"}, seed=2, resume=first.dataset_id)
    assert second.number == 2
    changed = client.get(f"/api/datasets/{first.dataset_id}/diff").json()
    assert (changed["added"], changed["removed"], changed["common"]) == (1, 1, 0)


@pytest.mark.parametrize("name", ["a\x7fb", "a\u2028b\u0085c", 'say: "yes"', "- [x]: {y}", "\ufeff#", "no", "😀 \\ '"])
def test_the_card_is_yaml_that_says_the_name(client: Client, name: str) -> None:
    _, version = finished(client, "sft_qa_pairs", pairs(1), name=name, tags=["no", "1.0"])
    card = download(client, version.dataset_id, "README.md").body.decode()
    front = yaml.safe_load(card.split("\n---\n")[0])
    assert (front["pretty_name"], front["tags"][2:]) == (version.dataset.name, ["no", "1.0"])


# Queries ------------------------------------------------------------------------------------------------------------


def test_a_tag_is_found_in_any_script(admin_client: Client) -> None:
    _, version = finished(admin_client, "sft_qa_pairs", pairs(1), tags=["größe", "日本"], name="the set")
    for tag in ("größe", "日本"):
        assert [entry["id"] for entry in admin_client.get("/api/datasets", {"tag": tag}).json()["datasets"]] == [
            version.dataset_id
        ]
        assert "the set" in admin_client.get("/console/datasets", {"tag": tag}).content.decode()


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"template": "nope"}, "template"),
        ({"archived": "banana"}, "archived"),
        ({"q": "漢" * 10_000}, "q"),
        ({"tag": "x" * 60_000}, "tag"),
    ],
)
def test_a_filter_that_cannot_be_is_refused(client: Client, query: dict[str, str], field: str) -> None:
    answer = client.get("/api/datasets", query)
    assert answer.status_code == 400 and answer.json()["field"] == field, answer.content


def test_a_search_as_long_as_a_book_is_refused_everywhere(admin_client: Client) -> None:
    _, version = finished(admin_client, "sft_qa_pairs", pairs(1))
    pages = (f"/api/datasets/{version.dataset_id}/rows", f"/console/datasets/{version.dataset_id}", "/admin/datasets/dataset/")
    for path in pages:
        assert admin_client.get(path, {"q": "漢" * 10_000}).status_code == 400
        assert admin_client.get(path, {"q": "😀" * 3_000}).status_code == 200, "as long as a search may be"
        assert admin_client.get(path, {"q": '"' * 3_000}).status_code == 200


@pytest.mark.parametrize("name", ["run_rows", "run_seed"])
def test_a_number_without_end_is_named_by_the_form(admin_client: Client, name: str) -> None:
    form = {**pairs(1), name: "9" * 5_000}
    answer = admin_client.post("/console/datasets/new?template=sft_qa_pairs", form)
    assert answer.status_code == 400 and f"{name.removeprefix('run_')} must be a whole number" in answer.content.decode()
    assert not DatasetVersion.objects.exists()
