"""Datasets over HTTP: what comes in from files and goes out to them."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from mlxplatform.datasets.models import DatasetVersion
from mlxplatform.jobs.models import Job
from tests.fixtures.dataset_api import (
    CHAT,
    Upload,
    all_rows,
    as_lines,
    download,
    export,
    finished,
    post,
    post_file,
    run_jobs,
    upload,
)

__all__ = ["upload"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker")]


def test_a_byte_order_mark_changes_nothing(client: Client, upload: Upload) -> None:
    raw = as_lines(CHAT, CHAT)
    plain, marked = upload(raw)[1], upload(b"\xef\xbb\xbf" + raw)[1]
    assert plain.files["train.jsonl"]["sha256"] == marked.files["train.jsonl"]["sha256"]


def test_unicode_separators_stay_inside_their_row(client: Client, upload: Upload) -> None:
    row = {"prompt": "a\u2028b\u2029c\u0085d", "completion": "e"}
    _, version = upload(as_lines(row))
    assert all_rows(client, version) == [row]
    assert "\u2028".encode() in download(client, version.dataset_id, "train.jsonl").body


@pytest.mark.parametrize("raw", [b"\n\n  \r\n", b"[]", b" "])
def test_a_file_without_rows_is_refused(upload: Upload, raw: bytes) -> None:
    job, version = upload(raw)
    assert (job.state, job.error_code, version.state) == ("failed", "zero_rows", "failed")


def test_a_json_array_is_read_as_its_rows(client: Client, upload: Upload) -> None:
    raw = b'[\n {"prompt":"a","completion":"b"},\n {"prompt":"c","completion":"d"}\n]'
    assert all_rows(client, upload(raw)[1]) == [{"prompt": "a", "completion": "b"}, {"prompt": "c", "completion": "d"}]


def test_every_bad_line_is_reported_and_nothing_imported(client: Client, upload: Upload) -> None:
    good = '{"prompt":"p","completion":"c"}'
    raw = "\n".join([good, good + ",", good.replace('"', "'"), '{"prompt":NaN,"completion":"c"}', "// x", good + good, good[:-5]])
    job, version = upload(raw.encode())
    assert (job.state, job.error_code) == ("failed", "bad_rows")
    for line in range(2, 8):
        assert f"line {line}" in job.error
    assert not version.files and version.report["bad_rows"] == 6 and version.report["read"] == 7
    job, version = upload(raw.encode(), on_bad_rows="skip")
    assert job.state == "done" and version.counts["accepted"] == 1
    assert version.counts["made"] == 7 == version.counts["accepted"] + sum(version.counts["dropped"].values())


def test_objects_where_text_belongs_name_row_and_field(upload: Upload) -> None:
    raw = as_lines(
        {"prompt": "p", "completion": {"a": None, "b": 5}},
        {"prompt": "p", "completion": ["x", "y"]},
        {"messages": [{"role": "assistant", "content": 5}]},
    )
    job, _ = upload(raw)
    assert "rows.jsonl line 1: completion must be text, got an object" in job.error
    assert "line 2: completion must be text, got a list" in job.error
    assert "line 3: messages[0].content must be text, got a number" in job.error


def test_mixed_forms_become_conversations_or_are_counted(client: Client, upload: Upload) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    convertible = [CHAT, {"prompt": "a", "completion": "b"}, {**CHAT, "tools": tools}, {"instruction": "i", "output": "o"}]
    job, version = upload(as_lines(*convertible))
    assert job.state == "done" and version.output_format == "messages"
    rows = all_rows(client, version)
    assert [len(row["messages"]) for row in rows] == [2] * 4
    assert ["tools" in row for row in rows] == [False, False, True, False]
    job, version = upload(as_lines(*convertible, {"text": "c"}))
    assert job.error_code == "bad_rows" and "line 5" in job.error
    assert (
        "2 messages (first at rows.jsonl line 1), 1 prompt_completion (first at rows.jsonl line 2)" in job.error
        and "1 text (first at rows.jsonl line 5)" in job.error
    )
    assert version.report["read"] == version.report["used"] + version.report["bad_rows"]


def called(arguments: str, answered: str = "1") -> dict[str, Any]:
    """A conversation with a call, its result and an answer."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    question, answer = CHAT["messages"]
    turns = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "r", "tool_call_id": answered},
    ]
    return {"messages": [question, *turns, answer]}


def test_a_call_with_its_result_is_a_good_row(client: Client, upload: Upload) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    _, version = upload(as_lines({**called('{"a": 1}'), "tools": tools}, called(""), {**CHAT, "tools": [{"name": "f"}]}))
    assert version.counts["accepted"] == 3


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": ""}]}, "answer is empty"),
        ({"messages": [{"role": "system", "content": "s"}]}, "no user message"),
        ({"messages": [{"role": "user", "content": "q"}]}, "no assistant message"),
        ({"messages": [*CHAT["messages"], {"role": "user", "content": "q"}]}, "last turn must be the assistant's"),
        ({"messages": [{"role": "assistant", "content": "a"}, *CHAT["messages"]]}, "first turn must be the user's"),
        ({"messages": [{"role": "user", "content": "q"}, {"role": "gpt", "content": "a"}]}, "'gpt'"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "user"}, {"role": "assistant", "content": "a"}]}, "content is missing"),
        ({"messages": [CHAT["messages"][0], {"role": "assistant", "content": "a", "weight": 2}]}, "weight must be 0 or 1"),
        (
            {"messages": [CHAT["messages"][0], {"role": "assistant", "content": " "}, *CHAT["messages"]]},
            "messages[1].content the assistant's answer is empty",
        ),
        (
            {"messages": [CHAT["messages"][0], {"role": "tool", "content": "r"}, CHAT["messages"][1]]},
            "messages[1].role a tool's result must follow",
        ),
        (
            {"messages": [CHAT["messages"][0], {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}]},
            "messages[1].tool_calls[0] must be an object with function.name",
        ),
        (
            {"messages": [{"role": "user", "content": "q", "tool_calls": [{}]}, CHAT["messages"][1]]},
            "messages[0].tool_calls only the assistant calls tools",
        ),
        ({"messages": [CHAT["messages"][0], {"role": "system", "content": "s"}, CHAT["messages"][1]]}, "must come first"),
        (called("not json"), "messages[1].tool_calls[0].function.arguments is no JSON object: 'not json'"),
        (called("[1]"), "messages[1].tool_calls[0].function.arguments is no JSON object"),
        (called("{}", answered="other"), "messages[2].tool_call_id is the id of no call"),
        ({**CHAT, "tools": 5}, "tools must be a list of functions, got a number"),
        ({**CHAT, "tools": "[1,2"}, "tools must be a list of functions, got text"),
        ({**CHAT, "tools": [{"type": "function"}]}, "tools[0] must be an object with function.name"),
        ({"prompt": "p", "chosen": "x", "rejected": "x"}, "rejected is the same as chosen"),
        ({"messages": {"role": "user"}}, "must be a list"),
        ({"messages": ["q", "a"]}, "messages[0] must be an object, got text"),
        ({"unknown": 1, "keys": 2}, "keys (unknown, keys) are no known form"),
    ],
)
def test_conversation_mistakes_are_named(upload: Upload, row: dict[str, Any], words: str) -> None:
    job, _ = upload(as_lines(CHAT, row))
    assert job.state == "failed" and "line 2" in job.error and words in job.error, job.error


def test_house_formats_are_converted(client: Client, upload: Upload) -> None:
    rows = [
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        {"chat_rounds": [{"role": "human", "content": "q"}, {"role": "bot", "content": "a"}]},
        {"instruction": "q", "input": "", "output": "a"},
        {"question": "q", "answer": "a"},
    ]
    for row in rows:
        assert all_rows(client, upload(as_lines(row))[1]) == [CHAT]
    job, _ = upload(as_lines({"conversations": [{"speaker": "x", "text": "y"}]}))
    assert "needs from and value; it has speaker, text" in job.error and "KeyError" not in job.error


def test_columns_that_are_not_used_are_said(client: Client, upload: Upload) -> None:
    raw = as_lines(
        *[{"instruction": "q", "input": "", "output": "a", "id": n, "source": "web"} for n in range(3)], {"id": 1, **CHAT}
    )
    _, version = upload(raw)
    assert version.report["left_out"] == {"id": 4, "source": 3}
    assert version.notes == ["Columns that no training format uses were left out: id (4 rows), source (3 rows)."]
    assert all_rows(client, version) == [CHAT] * 4


def test_csv_with_columns_of_its_own(client: Client, upload: Upload) -> None:
    raw = 'frage;antwort\r\n"a; ""b""";"c\nd"\r\n'.encode("utf-8-sig")
    answer = client.post("/api/datasets/import", {"file": SimpleUploadedFile("x.csv", raw)})
    run_jobs()
    assert "frage, antwort" in Job.objects.get(pk=answer.json()["job_id"]).error
    file_id = post_file(client, raw, "x.csv")
    answer = post(client, "/api/datasets/import", {"file_id": file_id, "columns": {"user": "frage", "assistant": "antwort"}})
    run_jobs()
    version = DatasetVersion.objects.get(job=answer.json()["job_id"])
    assert all_rows(client, version)[0]["messages"][1]["content"] == "c\nd"
    _, version = upload(raw, "x.csv", columns='{"user": "frage", "assistant": "antwort"}')
    assert version.counts["accepted"] == 1
    refused = client.post("/api/datasets/import", {"file": SimpleUploadedFile("x.csv", raw), "columns": "user=frage"})
    assert refused.status_code == 400 and refused.json()["field"] == "columns"
    job, _ = upload(b"a,b\n1,2,3\n", "x.csv")
    assert "3 cells where the header has 2" in job.error
    job, _ = upload("prompt,completion\nä,b\n".encode("latin-1"), "x.csv")
    assert "not UTF-8" in job.error


def test_imported_parts_are_searched_for_rows_they_share(client: Client, upload: Upload) -> None:
    rows = [{"prompt": f"q{n}", "completion": "a"} for n in range(18)]
    _, version = upload(as_lines(*rows, {"prompt": "Q1", "completion": "a"}, {"prompt": "q2", "completion": "other"}))
    assert version.report["leaks"] == {"same_row": 1, "same_question": 1}
    card = download(client, version.dataset_id, "README.md").body.decode()
    assert "1 validation rows repeat a training row; 1 repeat a question." in card


def test_the_recipe_on_a_card_holds_whatever_was_typed(client: Client) -> None:
    _, version = finished(client, "sft_qa_pairs", {"pairs_text": "Q: how?\nA: ```sh\nls\n````"})
    card = download(client, version.dataset_id, "README.md").body.decode()
    assert card.count("`````json\n") == 1 and card.rstrip().count("\n`````") == 2


def test_folders_bring_their_splits(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "HOME", tmp_path)
    folder = tmp_path / "imports" / "set" / "data"
    folder.mkdir(parents=True)
    (folder / "train-00000.jsonl.gz").write_bytes(gzip.compress(as_lines(*[{"text": f"t{n}"} for n in range(600)])))
    (folder / "validation.jsonl").write_bytes(as_lines({"text": "v"}))
    (folder / "test.json").write_text('[{"text": "x"}]')
    (folder / "README.md").write_text("about")
    answer = post(client, "/api/datasets/import", {"path": "set"})
    run_jobs()
    version = DatasetVersion.objects.get(job=answer.json()["job_id"])
    assert version.counts == {"made": 602, "accepted": 602, "train": 600, "valid": 1, "test": 1, "dropped": {}}
    page = client.get(f"/api/datasets/{version.dataset_id}/rows?limit=3&offset=598").json()
    assert [(row["split"], row["content"]["text"]) for row in page["rows"]] == [
        ("train", "t598"),
        ("train", "t599"),
        ("valid", "v"),
    ]
    assert page["has_more"] and page["next"] == 600
    rest = client.get(f"/api/datasets/{version.dataset_id}/rows?after=600").json()
    assert [row["content"]["text"] for row in rest["rows"]] == ["x"] and not rest["has_more"]
    middle = client.get(f"/api/datasets/{version.dataset_id}/rows?limit=1&offset=300&split=train").json()
    assert middle["rows"][0]["content"] == {"text": "t300"}
    for outside in ("/etc/passwd", "..", "../..", "set/../../x", "nothing"):
        refused = post(client, "/api/datasets/import", {"path": outside})
        assert refused.status_code == 404 and refused.json()["field"] == "path"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "file_id"),
        ({"file_id": "file-x", "path": "y"}, "file_id"),
        ({"file_id": "file-x"}, "file_id"),
        ({"path": "x", "color": 1}, "color"),
        ({"hub": "a/b", "on_bad_rows": "guess"}, "on_bad_rows"),
        ({"hub": "a/b", "format": "xml"}, "format"),
        ({"hub": "a/../b"}, "hub"),
        ({"hub": "https://hub/a/b"}, "hub"),
        ({"hub": "a/b", "columns": {"who": "x"}}, "columns.who"),
        ({"hub": "a/b", "valid_fraction": 2}, "valid_fraction"),
    ],
)
def test_bad_imports_name_the_field(client: Client, body: dict[str, Any], field: str) -> None:
    answer = post(client, "/api/datasets/import", body)
    assert answer.status_code in (400, 404) and answer.json()["field"] == field, answer.content
    assert not Job.objects.exists()


# Exports and changes ------------------------------------------------------------------------------------------------


def test_spreadsheet_formulas_are_defused(client: Client, upload: Upload) -> None:
    texts = ["=1+1", "+1", "@SUM(A1)", "-1+2", "\t=1", "\r=1", "plain"]
    _, version = upload(as_lines(*[{"prompt": text, "completion": text} for text in texts]))
    rows = list(csv.reader(io.StringIO(export(client, version.dataset_id, format="csv").decode(), newline="")))
    assert rows[0] == ["prompt", "completion"]
    assert [row[0] for row in rows[1:]] == [f"'{text}" for text in texts[:-1]] + ["plain"]


@pytest.mark.parametrize(
    ("wanted", "row"),
    [
        ("messages", CHAT),
        ("sharegpt", {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}),
        ("alpaca", {"instruction": "q", "input": "", "output": "a"}),
        ("prompt_completion", {"prompt": "q", "completion": "a"}),
        ("chatml", {"text": "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"}),
    ],
)
def test_exports_come_back_as_what_they_were(client: Client, upload: Upload, wanted: str, row: dict[str, Any]) -> None:
    _, version = upload(as_lines(CHAT))
    raw = export(client, version.dataset_id, format=wanted)
    assert json.loads(raw) == row
    if wanted != "chatml":
        assert all_rows(client, upload(raw)[1])[0] in (CHAT, {"prompt": "q", "completion": "a"})


def test_export_refuses_what_it_cannot_do(client: Client, upload: Upload) -> None:
    _, version = upload(as_lines(CHAT))
    for query, field in (("format=xml", "format"), ("split=all", "split"), ("version=x", "version")):
        answer = client.get(f"/api/datasets/{version.dataset_id}/export?{query}")
        assert answer.status_code == 400 and answer.json()["field"] == field


def test_parquet_goes_out_and_comes_in(client: Client, upload: Upload) -> None:
    rows = [CHAT, {**CHAT, "metadata": {"n": 1}}]
    _, version = upload(as_lines(*rows))
    raw = export(client, version.dataset_id, format="parquet", split="train")
    assert raw.startswith(b"PAR1") and raw.endswith(b"PAR1")
    _, again = upload(raw, "rows.parquet")
    assert all_rows(client, again) == rows[:1]
    job, _ = upload(raw[:-30], "rows.parquet")
    assert (job.state, job.error_code) == ("failed", "not_parquet")
