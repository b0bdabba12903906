"""Datasets over HTTP: orders, rows, files, pages, and what bad input gets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.test import Client

from mlxplatform.datasets import sandbox
from mlxplatform.datasets.models import Dataset, DatasetRow, DatasetVersion
from mlxplatform.jobs.models import Job
from tests.fixtures.dataset_api import (
    CHAT,
    Upload,
    all_rows,
    as_lines,
    download,
    export,
    finished,
    lines_of,
    order,
    pairs,
    post,
    post_file,
    run_jobs,
    upload,
)
from tests.fixtures.scripted_host import ScriptedRuntime, echo, runtime

__all__ = ["runtime", "upload"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker")]


@pytest.mark.parametrize(("rows", "train", "valid"), [(1, 1, 0), (2, 1, 1), (5, 4, 1), (9, 8, 1), (10, 9, 1), (11, 9, 2)])
def test_no_row_trains_and_validates(client: Client, rows: int, train: int, valid: int) -> None:
    job, version = finished(client, "sft_qa_pairs", pairs(rows))
    assert job.state == "done" and (job.result["n_train"], job.result["n_valid"]) == (train, valid)
    files = {name: lines_of(client, version.dataset_id, name) for name in ("train.jsonl", "valid.jsonl")}
    assert [len(found) for found in files.values()] == [train, valid]
    assert files["train.jsonl"] + files["valid.jsonl"] == [
        {"messages": [{"role": "user", "content": f"question {n}?"}, {"role": "assistant", "content": f"answer {n}."}]}
        for n in range(rows)
    ]
    assert any("validation set is empty" in note for note in version.notes) == (rows == 1)


def test_downloads_are_whole_checksummed_and_resumable(client: Client) -> None:
    _, version = finished(client, "sft_qa_pairs", pairs(30))
    whole = download(client, version.dataset_id, "train.jsonl")
    digest = hashlib.sha256(whole.body).hexdigest()
    assert whole["Content-Length"] == str(len(whole.body)) and whole["ETag"] == f'"{digest}"'
    assert version.files["train.jsonl"] == {"bytes": len(whole.body), "sha256": digest, "rows": 27}
    part = download(client, version.dataset_id, "train.jsonl", range="bytes=100-")
    assert part.status_code == 206 and part.body == whole.body[100:]
    assert download(client, version.dataset_id, "train.jsonl", range="bytes=-7").body == whole.body[-7:]
    beyond = download(client, version.dataset_id, "train.jsonl", range="bytes=999999-")
    assert beyond.status_code == 416 and beyond["Content-Range"] == f"bytes */{len(whole.body)}"
    stale = download(client, version.dataset_id, "train.jsonl", **{"range": "bytes=5-", "if-range": '"other"'})
    assert stale.status_code == 200 and stale.body == whole.body
    assert download(client, version.dataset_id, "train.jsonl", **{"if-none-match": f'"{digest}"'}).status_code == 304
    meta = json.loads(download(client, version.dataset_id, "meta.json").body)
    assert meta["counts"]["train"] == 27 and meta["files"]["train.jsonl"]["sha256"] == digest
    assert download(client, version.dataset_id, "../../db.sqlite3").status_code == 404
    assert download(client, version.dataset_id, "other.jsonl").json()["ok"] is False


def test_zero_rows_fail_with_the_reasons(client: Client) -> None:
    job, version = finished(client, "format_conversion", {"input_jsonl": '{"input":"x"}\nnot json\n'})
    assert (job.state, job.error_code) == ("failed", "zero_rows")
    assert "1 × missing_key (line 1: output missing" in job.error and "1 × not_json (line 2" in job.error
    assert version.state == "failed"
    shown = client.get(f"/api/datasets/{version.dataset_id}/rows?state=dropped").json()["rows"]
    assert [row["reason"] for row in shown] == ["missing_key", "not_json"]


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({}, 400, "missing_field", "template"),
        ({"template": "nope"}, 400, "unknown_template", "template"),
        ({"template_id": 5}, 400, "missing_field", "template_id"),
        ({"template": "sft_qa_pairs"}, 400, "missing_field", "inputs.pairs_text"),
        ({"template": "sft_qa_pairs", "inputs": {"x": 1}}, 400, "invalid_value", "inputs.x"),
        ({"template": "sft_qa_pairs", "inputs": {"pairs_text": "Q"}, "color": 1}, 400, "unknown_field", "color"),
        ({"template": "sft_qa_pairs", "inputs": {"pairs_text": "Q"}, "rows": 0}, 400, "invalid_value", "rows"),
        ({"template": "sft_qa_pairs", "inputs": {"pairs_text": "Q"}, "filters": {"x": 1}}, 400, "invalid_value", "filters.x"),
        (
            {"template": "sft_qa_pairs", "inputs": {"pairs_text": "Q"}, "filters": {"min_chars": "a"}},
            400,
            "invalid_value",
            "filters.min_chars",
        ),
        ({"template": "sft_qa_pairs", "inputs": {"pairs_text": "Q"}, "resume": "ds_x"}, 404, "dataset_not_found", "resume"),
        ({"template": "self_instruct", "inputs": {"seeds": "x"}, "model": 5}, 400, "invalid_value", "model"),
        ({"template": "answer_fill", "inputs": {"dataset_id": "ds_x"}}, 400, "invalid_value", "inputs.dataset_id"),
        ({"template": "code_completion", "inputs": {"src_dir": "/"}}, 400, "invalid_value", "inputs.src_dir"),
        ({"template": "code_completion", "inputs": {"src_dir": "~root"}}, 400, "invalid_value", "inputs.src_dir"),
    ],
)
def test_bad_orders_name_the_field_and_enqueue_nothing(client: Client, body: Any, status: int, code: str, field: str) -> None:
    answer = post(client, "/api/dataset/submit", body)
    assert answer.status_code == status, answer.content
    said = answer.json()
    assert (said["ok"], said["code"], said["field"]) == (False, code, field), said
    assert not Job.objects.exists() and not Dataset.objects.exists()


def test_model_code_is_run_in_the_sandbox(client: Client, runtime: ScriptedRuntime) -> None:
    good = "def add(a, b):\n    return a + b\nassert add(1, 2) == 3\nassert add(0, 0) == 0\nassert add(-1, 1) == 0"
    codes = {"add": good, "wrong": good.replace("== 3", "== 4"), "endless": "while True: pass", "nothing": "print('hello')"}
    runtime.say = lambda request: f"Here:\n```python\n{codes[(request.messages[-1].content or '').split()[0]]}\n```"
    body = {"template": "verified_code", "inputs": {"specs": "add\nwrong\nnothing"}}
    if not sandbox.kind_here():
        assert post(client, "/api/dataset/submit", body).status_code == 501
        return
    _, version = finished(client, body["template"], body["inputs"])  # type: ignore[arg-type]
    assert version.counts["accepted"] == 1 and version.counts["dropped"] == {"code_failed": 1, "no_assertions": 1}
    assert "AssertionError" in version.rows.get(reason="code_failed").detail
    [row] = lines_of(client, version.dataset_id, "train.jsonl")
    assert row["messages"][-1]["content"] == f"```python\n{good}\n```" and row["metadata"]["verified"] is True


def test_without_a_sandbox_model_code_is_refused_with_the_reason(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "kind_here", lambda: "")
    for path in ("/api/dataset/submit", "/api/dataset/preview"):
        answer = post(client, path, {"template": "verified_code", "inputs": {"specs": "x"}})
        assert answer.status_code == 501 and answer.json()["field"] == "template" and "bubblewrap" in answer.json()["error"]
    shown = {entry["id"]: entry for entry in client.get("/api/dataset/templates").json()["templates"]}
    assert "sandbox" in shown["verified_code"]["unavailable"] and "unavailable" not in shown["rag_qa"]
    assert not Job.objects.exists()


def test_an_unknown_model_is_refused_while_a_host_can_be_asked(client: Client, runtime: ScriptedRuntime) -> None:
    answer = post(client, "/api/dataset/submit", {"template": "self_instruct", "inputs": {"seeds": "x"}, "model": "other"})
    assert answer.status_code == 404 and answer.json()["field"] == "model"


def test_the_same_key_makes_one_dataset(client: Client) -> None:
    body = {"template": "sft_qa_pairs", "inputs": pairs(2)}
    first = post(client, "/api/dataset/submit", body, **{"idempotency-key": "k"}).json()
    assert post(client, "/api/dataset/submit", body, **{"idempotency-key": "k"}).json() == first
    other = post(client, "/api/dataset/submit", {**body, "inputs": pairs(3)}, **{"idempotency-key": "k"})
    assert other.status_code == 400 and Dataset.objects.count() == 1


def test_a_model_writes_rows_and_every_call_is_kept(client: Client, runtime: ScriptedRuntime) -> None:
    runtime.say = lambda request: '["Name a river", "Count to ten", "Name a river"]'
    job, version = finished(client, "self_instruct", {"seeds": "Name a city", "variants_per_seed": 3}, seed=4)
    assert job.state == "done", job.error
    assert version.counts["accepted"] == 2 and version.counts["dropped"] == {"duplicate": 1}
    assert version.trainable is False and "prompts only" in version.notes[-1]
    assert version.report["model"] == "tiny" and version.report["calls"] == 1
    rows = client.get(f"/api/datasets/{version.dataset_id}/rows?state=accepted").json()["rows"]
    assert [row["split"] for row in rows] == ["train", "valid"]
    filled, answers = finished(client, "answer_fill", {"dataset_id": version.dataset_id})
    assert filled.state == "done" and answers.trainable
    assert lines_of(client, answers.dataset_id, "train.jsonl")[0]["messages"][1]["content"].startswith("[")


def test_instructions_like_the_pool_are_dropped(client: Client, runtime: ScriptedRuntime) -> None:
    said = ["Name the three largest cities of Italy", "Write a poem about the sea", "Name the three largest cities of Spain"]
    runtime.say = lambda request: json.dumps(said)
    _, version = finished(client, "self_instruct", {"seeds": "Name the three largest cities of France", "variants_per_seed": 3})
    assert version.counts["accepted"] == 1 and version.counts["dropped"] == {"like_the_pool": 2}


def test_rows_asked_for_are_rows_got(client: Client, runtime: ScriptedRuntime) -> None:
    """Rounds go on until enough distinct rows are there; what is over the number is dropped as such."""
    runtime.say = lambda request: f"Story {request.sampling.seed} about number {request.sampling.seed}"
    inputs = {"personas": "nurse\npilot", "questions_each": 2}
    job, version = finished(client, "persona_qa", inputs, rows=7)
    assert job.state == "done" and version.counts["accepted"] == 7
    assert set(version.counts["dropped"]) <= {"over_target"}


def test_too_few_rows_are_said(client: Client, runtime: ScriptedRuntime) -> None:
    runtime.say = lambda request: "always the same"
    job, version = finished(client, "persona_qa", {"personas": "nurse", "questions_each": 2}, rows=5)
    assert job.state == "done" and version.counts["accepted"] == 1
    [note] = [note for note in version.notes if "asked for" in note]
    assert note.startswith("5 rows were asked for; 1 are distinct and acceptable. Further rounds")


def test_filters_drop_and_count(client: Client, runtime: ScriptedRuntime) -> None:
    answers = iter(
        ["I'm sorry, I can't help.", "Write to bob@example.org today.", "ok", "A long and good answer.", "3", "9 fine"]
    )

    def say(request: Any) -> str:
        return "9 fine" if "grade" in (request.messages[0].content or "") else next(answers)

    runtime.say = say
    inputs = {"rows": "\n".join(json.dumps({"n": n}) for n in range(4)), "prompt_template": "Say something about {{ n }}."}
    filters = {"pii": "drop", "min_chars": 28, "judge": {"rubric": "clear", "threshold": 7}}
    _, version = finished(client, "column_prompts", inputs, filters=filters)
    assert version.counts["accepted"] == 1
    assert version.counts["dropped"] == {"refusal": 1, "personal_data": 1, "too_short": 1}
    [row] = version.rows.filter(state="accepted")
    assert row.verdicts["judge"] == 9


def test_resume_asks_only_what_changed(client: Client, runtime: ScriptedRuntime) -> None:
    """An edited later column: earlier steps keep their answers, the edited step runs again."""
    runtime.say = lambda request: "Tell me more."
    inputs = {"target_text": "One paragraph.\n\nAnother paragraph.", "tone": "dry"}
    _, first = finished(client, "prompt_reconstruction", inputs)
    asked = sum(runtime.started.values())
    answer = order(client, "prompt_reconstruction", {**inputs, "tone": "warm"}, resume=first.dataset_id)
    run_jobs()
    second = DatasetVersion.objects.get(job=answer["job_id"])
    assert (second.number, second.parent_id, second.state) == (2, first.pk, "ready")
    assert sum(runtime.started.values()) == asked
    changed = client.get(f"/api/datasets/{first.dataset_id}/diff").json()
    assert (changed["added"], changed["removed"], changed["common"]) == (2, 2, 0)
    shown = client.get(f"/api/datasets/{first.dataset_id}/versions").json()["versions"]
    assert [entry["version"] for entry in shown] == [2, 1] and shown[0]["parent"] == {
        "dataset_id": first.dataset_id,
        "version": 1,
    }


def test_editing_a_later_column_asks_only_that_column_again(client: Client, runtime: ScriptedRuntime) -> None:
    """The rubric is in the grades' requests only: the answers are taken over, call by call."""
    runtime.say = lambda request: (
        str(len(request.messages[-1].content or "") % 10 + 1) if "grade" in (request.messages[0].content or "") else None
    )
    inputs = {"prompts": "Name a river\nName a lake", "answers": 2, "min_gap": 1, "rubric": "short"}
    _, first = finished(client, "preference_pairs", inputs, seed=5)

    def asked() -> tuple[int, int]:
        grades = sum(number for text, number in runtime.started.items() if text.startswith("Request:"))
        return runtime.started.total() - grades, grades

    assert asked() == (4, 4)
    order(client, "preference_pairs", {**inputs, "rubric": "long"}, resume=first.dataset_id)
    run_jobs()
    assert asked() == (4, 8)
    order(client, "preference_pairs", {**inputs, "prompts": inputs["prompts"] + "\nName a sea"}, resume=first.dataset_id)
    run_jobs()
    assert asked() == (6, 10), "the rubric is the first version's again, whose grades are still good"


def test_a_failed_call_costs_one_row_and_a_retry_makes_it_good(client: Client, runtime: ScriptedRuntime) -> None:
    from mlxplatform.inference.contract import Refusal
    from mlxplatform.jobs import service

    runtime.refuse = lambda text, number: Refusal(400, "context_length_exceeded", "Too long.")
    job, version = finished(client, "cot_synthesis", {"questions": "one\ntwo"})
    assert job.error_code == "zero_rows" and "call_failed:context_length_exceeded" in job.error
    runtime.refuse = lambda text, number: None
    service.retry(job.id, "local")
    run_jobs()
    version.refresh_from_db()
    assert version.state == "ready" and version.counts["accepted"] == 2


def test_a_retry_makes_only_what_a_source_lacks(client: Client, runtime: ScriptedRuntime) -> None:
    """Two rows of one source, of which one failed; then the run itself did, so that it can be tried again."""
    from mlxplatform.inference.contract import Refusal
    from mlxplatform.jobs import service

    def say(request: Any) -> str:
        asked = request.messages[-1].content or ""
        return '["one thing", "another thing"]' if "JSON array" in asked else f"about {asked}"

    runtime.say = say
    runtime.refuse = lambda text, number: Refusal(400, "engine_poisoned", "It died.") if text == "another thing" else None
    inputs = {"topics": "cooking", "depth": 1, "branches": 1, "questions_per_leaf": 2}
    job, version = finished(client, "topic_tree", inputs, filters={"min_chars": 10_000})
    assert job.error_code == "zero_rows" and "call_failed:engine_poisoned" in job.error
    assert version.rows.filter(reason="too_short").count() == 1
    asked = sum(runtime.started.values())
    runtime.refuse = lambda text, number: None
    service.retry(job.id, "local")
    run_jobs()
    assert sum(runtime.started.values()) == asked + 1
    assert sorted(version.rows.values_list("reason", flat=True)) == ["too_short", "too_short"]


# Text templates of people -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "template",
    [
        "{{ (1).__class__.__bases__ }}",
        "{{ joiner.__init__.__globals__ }}",
        "{{ lipsum.__globals__.os }}",
        "{{ ''|attr('__class__') }}",
        "{% import 'x' as y %}{{ y }}",
        "{{ 'x' * 999999999 }}",
        "{{ 10 ** 999999999 }}",
        "{{ q",
    ],
)
def test_templates_cannot_leave_the_sandbox(client: Client, template: str) -> None:
    inputs = {"rows": '{"q":"x"}', "prompt_template": template}
    answer = post(client, "/api/dataset/submit", {"template": "column_prompts", "inputs": inputs})
    assert answer.status_code == 400 and answer.json()["field"] == "inputs.prompt_template", answer.content
    assert not Job.objects.exists()


def test_values_are_never_read_as_templates(client: Client) -> None:
    inputs = {"rows": '{"q":"{{ 7*7 }}"}', "prompt_template": "{{ q }}", "answer_template": "{{ q }}!"}
    _, version = finished(client, "column_prompts", inputs)
    assert lines_of(client, version.dataset_id, "train.jsonl")[0]["messages"][0]["content"] == "{{ 7*7 }}"


def test_a_missing_name_is_an_error_of_its_row(client: Client) -> None:
    rows = '{"question":"q","answer":"a"}'
    inputs = {"rows": rows, "prompt_template": "Q: {{ question }} A: {{ anwser }}", "answer_template": "x"}
    answer = post(client, "/api/dataset/submit", {"template": "column_prompts", "inputs": inputs})
    assert answer.status_code == 400 and "anwser" in answer.json()["error"] and "line 1" in answer.json()["error"]
    later = {"rows": rows + '\n{"question":"only"}', "prompt_template": "{{ question }} {{ answer }}", "answer_template": "x"}
    _, version = finished(client, "column_prompts", later)
    [drop] = version.rows.filter(state="dropped")
    assert drop.reason == "template" and "answer" in drop.detail
    optional = {**later, "prompt_template": "{{ question }} {{ answer|default('none') }}"}
    assert finished(client, "column_prompts", optional)[1].counts["accepted"] == 2


def test_lists_page_and_archive(client: Client) -> None:
    ids = [order(client, "sft_qa_pairs", pairs(1), name=f"set {n}", tags=["a"])["dataset_id"] for n in range(5)]
    first = client.get("/api/datasets?limit=2").json()
    assert [entry["id"] for entry in first["datasets"]] == ids[:2:-1] and first["has_more"]
    second = client.get(f"/api/datasets?limit=10&after={first['next']}").json()
    assert [entry["id"] for entry in second["datasets"]] == ids[2::-1] and not second["has_more"]
    client.patch(f"/api/datasets/{ids[1]}", {"tags": ["b", "c.d"]}, content_type="application/json")
    for tag, found in (("b", [ids[1]]), ("c.d", [ids[1]]), ("c", []), ('a"', []), ("a", [ids[4], ids[3]])):
        paged = client.get("/api/datasets", {"limit": "2", "tag": tag}).json()
        assert [entry["id"] for entry in paged["datasets"]] == found and paged["has_more"] is (tag == "a")
    changed = client.patch(f"/api/datasets/{ids[0]}", {"archived": True, "name": "old"}, content_type="application/json")
    assert changed.json()["dataset"]["archived"] is True
    for path, body in (
        (f"/api/datasets/{ids[0]}", {"name": "a\x00"}),
        (f"/api/datasets/{ids[0]}", {"tags": ["a\x00"]}),
    ):
        assert client.patch(path, body, content_type="application/json").json()["code"] == "invalid_value"
    assert client.get(f"/api/datasets/{ids[1]}/rows?split=half").json()["field"] == "split"
    assert ids[0] not in [entry["id"] for entry in client.get("/api/datasets").json()["datasets"]]
    assert client.get("/api/datasets?limit=0").json()["field"] == "limit"
    assert client.get("/api/datasets?after=ds_x").json()["field"] == "after"
    assert client.get("/api/datasets/ds_x").json() == {
        "ok": False,
        "error": "dataset not found",
        "code": "dataset_not_found",
        "field": None,
    }


@pytest.mark.parametrize("words", ["Straße", 'say "hi"', "a\\b", "日本", "😀"])
def test_rows_are_found_by_any_text_they_contain(admin_client: Client, words: str) -> None:
    _, version = finished(admin_client, "sft_qa_pairs", {"pairs_text": f"Q: one {words}?\nA: yes\n\nQ: two?\nA: no"})
    found = admin_client.get(f"/api/datasets/{version.dataset_id}/rows", {"q": words}).json()["rows"]
    assert [row["content"]["messages"][0]["content"] for row in found] == [f"one {words}?"]
    page = admin_client.get(f"/console/datasets/{version.dataset_id}", {"q": words}, follow=True).content.decode()
    assert "one " in page and "two?" not in page


def test_a_person_compares_versions_and_changes_what_may_be_changed(admin_client: Client, runtime: ScriptedRuntime) -> None:
    runtime.say = lambda request: f"<b>about</b> {request.messages[-1].content}"
    _, first = finished(admin_client, "cot_synthesis", {"questions": "one\ntwo"}, name="old name", tags=["a"])
    page = f"/console/datasets/{first.dataset_id}"
    assert admin_client.get(f"{page}/changes").status_code == 400
    finished(admin_client, "cot_synthesis", {"questions": "one\nthree"}, resume=first.dataset_id)
    shown = admin_client.get(f"{page}/changes").content.decode()
    assert "<dd>1</dd>" in shown and "three" in shown and "two" in shown and "<b>about" not in shown
    said = admin_client.get(page).content.decode()
    assert f"{page}/changes?to=2" in said and "format=alpaca" in said and "repeat a training row" in said
    admin_client.post(f"{page}/change", {"name": "new name", "description": "d", "tags": "b, c.d"})
    first.dataset.refresh_from_db()
    assert (first.dataset.name, first.dataset.tags) == ("new name", ["b", "c.d"])
    refused = admin_client.post(f"{page}/change", {"tags": "no/slash"}, follow=True).content.decode()
    assert "tags must be a list" in refused
    admin_client.post(f"{page}/change", {"archived": "true"})
    assert "new name" not in admin_client.get("/console/datasets").content.decode()
    assert "new name" in admin_client.get("/console/datasets?archived=1").content.decode()
    admin_client.post(f"{page}/change", {"archived": "false"})
    assert "new name" in admin_client.get("/console/datasets?tag=c.d").content.decode()


def test_markup_is_shown_as_text_in_the_admin(admin_client: Client) -> None:
    bad = "<img src=x onerror=alert(1)></pre><script>alert(1)</script>"
    _, version = finished(admin_client, "sft_qa_pairs", {"pairs_text": f"Q: {bad}\nA: {bad}"}, name=bad)
    for path in ("/admin/datasets/dataset/", f"/admin/datasets/dataset/{quote(version.dataset_id)}/change/"):
        page = admin_client.get(path).content.decode()
        assert "<img src=x" not in page and "<script>alert" not in page
        assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert f"/api/datasets/{version.dataset_id}/files/train.jsonl" in page
    assert DatasetRow.objects.count() == 1


@pytest.mark.parametrize("tags", ["5", '{"a": 1}', '["a b"]', '["\\u0000"]', '[["a"]]'])
def test_the_admin_takes_no_tags_that_the_api_would_not(admin_client: Client, tags: str) -> None:
    _, version = finished(admin_client, "sft_qa_pairs", pairs(1), tags=["kept"])
    address = f"/admin/datasets/dataset/{quote(version.dataset_id)}"
    shown = admin_client.post(f"{address}/change/", {"name": "x", "description": "", "tags": tags})
    assert shown.status_code == 200 and "short words" in shown.content.decode()
    assert Dataset.objects.get(pk=version.dataset_id).tags == ["kept"]
    assert admin_client.post(f"{address}/change/", {"name": "x", "description": "", "tags": '["new"]'}).status_code == 302
    assert Dataset.objects.get(pk=version.dataset_id).tags == ["new"]
    assert admin_client.post(f"{address}/delete/", {"post": "yes"}).status_code == 403, "its files would stay"


def test_a_preview_shows_everything_and_forecasts_the_run(client: Client, runtime: ScriptedRuntime) -> None:
    runtime.say = lambda request: "" if (request.messages[-1].content or "").endswith("7") else "<think>so</think>it is"
    inputs = {"questions": "\n".join(f"What is {n}" for n in range(40))}
    body = {"template": "cot_synthesis", "inputs": inputs, "seed": 3}
    answer = post(client, "/api/dataset/preview", body)
    assert answer.status_code == 200, answer.content
    run_jobs()
    job = Job.objects.get(pk=answer.json()["job_id"])
    assert job.state == "done", job.error
    shown = job.result
    assert len(shown["rows"]) == 10 and [row["state"] for row in shown["rows"]].count("accepted") == 9
    assert shown["calls"][0]["prompt"][-1] == {"role": "user", "content": "What is 0"}
    assert "so" in shown["calls"][0]["answer"]
    expected = shown["forecast"]
    assert expected["sources"] == 40 and expected["rows"]["low"] < 36 == expected["rows"]["expected"] < expected["rows"]["high"]
    assert client.get("/api/datasets").json()["datasets"] == []
    asked = sum(runtime.started.values())
    full, version = finished(client, "cot_synthesis", inputs, seed=3, preview=job.id)
    assert full.state == "done" and sum(runtime.started.values()) == asked + 30
    report = version.report
    assert report["forecast"] == expected and report["seconds"] >= 0
    assert report["reused"]["calls"] == 10 and report["calls"] == 40
    assert report["reused"]["completion_tokens"] == expected["from"]["completion_tokens"]


def test_a_preview_without_a_model(client: Client) -> None:
    answer = post(client, "/api/dataset/preview", {"template": "sft_qa_pairs", "inputs": pairs(30), "preview_rows": 3})
    run_jobs()
    job = Job.objects.get(pk=answer.json()["job_id"])
    assert len(job.result["rows"]) == 3 and job.result["forecast"]["rows"]["expected"] == 30
    assert post(client, "/api/dataset/preview", {"template": "sft_qa_pairs", "preview_rows": 0}).json()["field"] == "preview_rows"


def test_the_wizard_previews_and_then_runs_the_whole(admin_client: Client, runtime: ScriptedRuntime) -> None:
    runtime.say = lambda request: "<b>bold</b> answer"
    form = {"questions": "one\ntwo\nthree", "category": "", "run_seed": "3", "run": "preview"}
    answer = admin_client.post("/console/datasets/new?template=cot_synthesis", form)
    assert answer.status_code == 302
    run_jobs()
    page = admin_client.get(answer["Location"]).content.decode()
    assert "Run all of it" in page and "&lt;b&gt;bold&lt;/b&gt; answer" in page and "<b>bold" not in page
    asked = sum(runtime.started.values())
    made = admin_client.post(answer["Location"])
    run_jobs()
    assert sum(runtime.started.values()) == asked
    [dataset] = Dataset.objects.filter(preview=False)
    assert dataset.id in made["Location"] and dataset.versions.get().state == "ready"
    assert dataset.name in admin_client.get("/console/datasets").content.decode()


def test_imported_rows_are_shown_page_by_page(admin_client: Client, upload: Upload) -> None:
    _, version = upload(as_lines(*[{"text": f"row <{n}>"} for n in range(120)]))
    page = admin_client.get(f"/console/datasets/{version.dataset_id}?page=2").content.decode()
    assert "row &lt;50&gt;" in page and "row &lt;99&gt;" in page and "row &lt;100&gt;" not in page


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_a_finished_batch_becomes_rows(client: Client, dialect: str) -> None:
    from django.utils import timezone

    from mlxplatform.batches.models import Batch
    from mlxplatform.files import service as files

    def asked(key: str, content: Any) -> dict[str, Any]:
        body = {"model": "m", "messages": [{"role": "user", "content": content}]}
        return {"custom_id": key, "body": body} if dialect == "openai" else {"custom_id": key, "params": {**body, "system": "S"}}

    def said(key: str, text: str | None) -> dict[str, Any]:
        if dialect == "anthropic":
            good = {"type": "succeeded", "message": {"content": [{"type": "text", "text": text}]}}
            return {"custom_id": key, "result": good if text is not None else {"type": "errored"}}
        body = {"choices": [{"message": {"content": text}}]}
        return {"custom_id": key, "response": {"status_code": 200 if text is not None else 500, "body": body}}

    given = as_lines(asked("b", "two"), asked("a", "one"), asked("c", "three"), asked("d", [{"type": "image_url"}]))
    output = as_lines(said("a", "1"), said("b", "2"), said("c", None), said("d", "4"))
    stored = [files.store([raw], "x.jsonl", "batch") for raw in (given, output)]
    batch = Batch.objects.create(
        id="batch_1", dialect=dialect, endpoint="/v1/x", input_file=stored[0], output_file=stored[1], expires_at=timezone.now()
    )
    job, version = finished(client, "from_batch", {"batch_id": batch.id})
    assert job.state == "done", job.error
    texts = [[message["content"] for message in row["messages"]] for row in all_rows(client, version)]
    system = ["S"] if dialect == "anthropic" else []
    assert texts == [[*system, "two", "2"], [*system, "one", "1"]]
    assert version.counts["dropped"] == {"not_answered": 1, "not_text": 1}
    missing, _ = finished(client, "from_batch", {"batch_id": "batch_2"})
    assert missing.error_code == "batch_not_found"


def test_cancelling_keeps_finished_rows_and_a_retry_makes_the_rest(client: Client, runtime: ScriptedRuntime) -> None:
    import threading

    from mlxplatform.jobs import service

    runtime.script["q7"] = lambda number: None if number == 1 else echo("q7")
    made = order(client, "cot_synthesis", {"questions": "\n".join(f"q{n}" for n in range(8))})
    worker = threading.Thread(target=run_jobs, kwargs={"listening": True})
    worker.start()
    wait_until(lambda: DatasetRow.objects.filter(state="accepted").count() == 7)
    service.cancel(made["job_id"], "local")
    worker.join(30)
    version = DatasetVersion.objects.get(job=made["job_id"])
    assert (Job.objects.get(pk=made["job_id"]).state, version.state) == ("cancelled", "cancelled")
    assert version.counts == {"made": 7, "accepted": 7, "dropped": {}}
    assert len(export(client, version.dataset_id).splitlines()) == 7
    assert len(client.get(f"/api/datasets/{version.dataset_id}/rows").json()["rows"]) == 7
    service.retry(made["job_id"], "local")
    run_jobs()
    version.refresh_from_db()
    assert version.state == "ready" and version.counts["accepted"] == 8
    assert {text: number for text, number in runtime.started.items() if number > 1} == {"q7": 2}


def test_cancelling_keeps_what_was_finished_and_not_yet_written(
    client: Client, runtime: ScriptedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    from mlxplatform.datasets import run
    from mlxplatform.jobs import service
    from mlxplatform.rows.models import RowCall

    monkeypatch.setattr(run, "SAVE_SECONDS", 3600)
    runtime.script["q7"] = lambda number: None
    made = order(client, "cot_synthesis", {"questions": "\n".join(f"q{n}" for n in range(8))})
    worker = threading.Thread(target=run_jobs, kwargs={"listening": True})
    worker.start()
    wait_until(lambda: RowCall.objects.filter(job=made["job_id"], state="done").count() == 7)
    assert not DatasetRow.objects.exists()
    service.cancel(made["job_id"], "local")
    worker.join(30)
    version = DatasetVersion.objects.get(job=made["job_id"])
    assert (version.state, version.counts["accepted"], version.rows.count()) == ("cancelled", 7, 7)


def wait_until(condition: Callable[[], bool]) -> None:
    import threading

    for _ in range(400):
        if condition():
            return
        threading.Event().wait(0.05)
    raise AssertionError("the condition did not come true")


def test_every_row_knows_its_calls_and_the_dataset_its_relatives(client: Client, runtime: ScriptedRuntime) -> None:
    runtime.say = lambda request: '["Name a river"]' if "JSON array" in (request.messages[-1].content or "") else "The Rhine."
    _, version = finished(client, "self_instruct", {"seeds": "Name a city"}, seed=11)
    [row] = client.get(f"/api/datasets/{version.dataset_id}/rows").json()["rows"]
    shown = client.get(f"/api/datasets/{version.dataset_id}/rows/{row['ordinal']}").json()
    [call] = shown["calls"]
    assert (call["step"], call["model"], call["answer"]) == ("variants", "tiny", '["Name a river"]')
    assert call["sampling"]["temperature"] == 0.7 and isinstance(call["sampling"]["seed"], int)
    assert shown["made_by"]["template"] == "self_instruct" and shown["made_by"]["model"] == "tiny"
    assert client.get(f"/api/datasets/{version.dataset_id}/rows/99").status_code == 404
    _, filled = finished(client, "answer_fill", {"dataset_id": version.dataset_id})
    known = client.get(f"/api/datasets/{version.dataset_id}").json()["lineage"]
    assert known["continued_in"] == [{"dataset_id": filled.dataset_id, "version": 1}] and known["trained"] == []
    back = client.get(f"/api/datasets/{filled.dataset_id}").json()["lineage"]
    assert back["origins"] == [{"dataset_id": version.dataset_id, "version": 1, "by": 1}] and back["continued_in"] == []


def test_a_file_deleted_before_its_import_is_said(client: Client) -> None:
    file_id = post_file(client, as_lines(CHAT), "x.jsonl")
    answer = post(client, "/api/datasets/import", {"file_id": file_id})
    client.delete(f"/v1/files/{file_id}")
    run_jobs()
    job = Job.objects.get(pk=answer.json()["job_id"])
    assert (job.state, job.error_code) == ("failed", "file_not_found")
