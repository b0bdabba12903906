"""The line about every finished request: written once, bounded with the history, read by project, found by its words."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from django.utils import timezone

from mlxplatform import environment
from mlxplatform.inference import history, request_log
from mlxplatform.inference.contract import Message, Usage
from mlxplatform.inference.models import FinishedRequest
from mlxplatform.inference.request_log import Content, Ended, Outcome, Said

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def no_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are written when a test says so."""
    monkeypatch.setattr(request_log._behind, "wake", lambda: None)


#: The name tests may call the server by.
HERE = {"host": "localhost"}
TALK = Content([Message("system", "Be brief."), Message("user", "Where is the owl?")], None, [Said("In the attic.", "Hm.")])


def ended(request_id: str, **more: Any) -> Ended:
    values: dict[str, Any] = {"project": "default", "key_id": "", "outcome": Outcome.COMPLETED, "content": TALK}
    values |= {"path": "/v1/messages", "model": "m", "usage": Usage(9, 4, 3, 1), "duration_s": 1.5, "first_token_s": 0.25}
    return Ended(**{"id": request_id, **values, **more})


def keep(*lines: Ended, age_s: float = 60) -> None:
    """Write lines and make them old enough to be read."""
    for line in lines:
        request_log.add(line)
    request_log.flush()
    FinishedRequest.objects.filter(id__in=[line.id for line in lines]).update(ended_at=timezone.now() - timedelta(seconds=age_s))


def test_a_line_tells_who_asked_what_and_what_it_cost() -> None:
    request_log.add(ended("r1", key_id="key_1", stream=True))
    assert request_log.flush() == 1
    row = FinishedRequest.objects.get(id="r1")
    facts = request_log.facts(row)
    assert (facts["path"], facts["key_id"], facts["stream"]) == ("/v1/messages", "key_1", True)
    counts = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "duration_ms", "first_token_ms")
    assert [facts[name] for name in counts] == [9, 4, 3, 1, 1500, 250]
    assert request_log.content_of(row) == TALK


def test_a_line_is_written_once() -> None:
    request_log.add(ended("r1"))
    request_log.flush()
    request_log.add(ended("r1", model="other"))
    request_log.flush()
    assert FinishedRequest.objects.get().model == "m"


def test_nothing_is_kept_while_the_history_is_off(settings: Any) -> None:
    settings.ENV = environment.read({"MLXPLATFORM_STORE": "0"})
    request_log.add(ended("r1"))
    assert request_log.flush() == 0


def test_words_with_nul_are_kept_and_found() -> None:
    keep(ended("r1", content=Content([Message("user", "a\x00b")], None, [Said("c\x00d")])))
    (row,), more = request_log.page("default", limit=5, search="cd")
    assert not more
    content = request_log.content_of(FinishedRequest.objects.get(id=row.id))
    assert content is not None and content.answers[0].text == "c\x00d"


def test_pages_search_and_filter_within_a_project() -> None:
    keep(ended("r1"), ended("r2", outcome=Outcome.FAILED, content=None, error_code="engine_failed"), ended("r3", project="b"))
    assert {row.id for row in request_log.page("default", limit=9)[0]} == {"r1", "r2"}
    assert [row.id for row in request_log.page("default", limit=9, search="ATTIC")[0]] == ["r1"]
    assert [row.id for row in request_log.page("default", limit=9, outcome="failed")[0]] == ["r2"]
    first, more = request_log.page("default", limit=1)
    rest, end = request_log.page("default", limit=1, before=first[0].id)
    assert (more, end) == (True, False)
    assert {first[0].id, rest[0].id} == {"r1", "r2"}
    assert request_log.page("default", limit=9, before="r3") == ([], False)


def test_readers_get_conversations_after_their_cursor() -> None:
    keep(ended("r1", key_id="k1"), age_s=90)
    keep(ended("r2", key_id="k2"), age_s=60)
    keep(ended("r3", content=None), ended("r4", content=Content([], "bare prompt", [Said("x")])), ended("r5", project="b"))
    request_log.add(ended("young"))
    request_log.flush()
    found = list(request_log.conversations("default"))
    assert [talk.id for talk in found] == ["r1", "r2"]
    assert [turn.role for turn in found[0].messages] == ["system", "user", "assistant"]
    assert found[0].messages[-1].content == "In the attic."
    assert [talk.id for talk in request_log.conversations("default", after=(found[0].ended_at, "r1"))] == ["r2"]
    assert [talk.id for talk in request_log.conversations("default", key_ids=["k1"])] == ["r1"]


def test_age_and_the_byte_cap_remove_the_oldest_of_both_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(ended("ancient"), age_s=40 * 86400)
    assert history.sweep() == 1
    for age, name in enumerate(["r1", "r2", "r3"]):
        keep(ended(name), age_s=9000 - age)
    history.save(history.Record("resp_1", "response", "default", "m", {}, [], {"x": "y" * 400}, {}))
    size = history.statistics()["bytes"]
    monkeypatch.setattr(history, "MIB", (size - 1) / 1024)  # one byte too much: the cap is HISTORY_MB times this
    history.sweep()
    assert set(FinishedRequest.objects.values_list("id", flat=True)) == {"r2", "r3"}
    assert history.load("resp_1", "response", "default") is not None


def test_lines_are_forgotten_by_key_and_by_id() -> None:
    keep(ended("r1", key_id="k1"), ended("r2", key_id="k2"), ended("r3", key_id="k1", project="b"))
    assert request_log.forget("default", request_id="r3") == 0
    assert request_log.forget("default", key_id="k1") == 1
    assert set(FinishedRequest.objects.values_list("id", flat=True)) == {"r2", "r3"}


def test_a_line_that_is_forgotten_before_it_is_written_stays_forgotten() -> None:
    request_log.add(ended("r1", key_id="k1"))
    request_log.add(ended("r2", key_id="k2"))
    request_log.forget("default", request_id="r1")
    request_log.flush()
    assert set(FinishedRequest.objects.values_list("id", flat=True)) == {"r2"}


def test_lines_wait_for_a_database_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OperationalError("locked")

    with monkeypatch.context() as patch:
        patch.setattr(FinishedRequest.objects, "bulk_create", refuse)
        request_log.add(ended("r1"))
        with pytest.raises(OperationalError):
            request_log.flush()
    assert request_log.flush() == 1


def test_the_admin_finds_lines_by_their_words_and_shows_them_as_text(admin_client: Client) -> None:
    evil = "<img src=x onerror=alert(1)>"
    keep(ended("r1", content=Content([Message("user", evil)], None, [Said("An answer.")])), ended("r2"))
    listed = admin_client.get("/admin/inference/finishedrequest/", {"q": "onerror"}, headers=HERE).content.decode()
    assert "r1" in listed and ">r2<" not in listed
    shown = admin_client.get("/admin/inference/finishedrequest/r1/change/", headers=HERE)
    assert shown.status_code == 200
    page = shown.content.decode()
    assert evil not in page and "&lt;img src=x" in page and "An answer." in page


def test_the_admin_exports_what_was_said(admin_client: Client) -> None:
    keep(ended("r1"), ended("r2", content=None))
    chosen = {"action": "export_jsonl", "_selected_action": ["r1", "r2"]}
    answer = admin_client.post("/admin/inference/finishedrequest/", chosen, headers=HERE)
    lines = [json.loads(line) for line in b"".join(answer.streaming_content).splitlines()]  # type: ignore[attr-defined]
    assert {line["id"]: line["content"] is None for line in lines} == {"r1": False, "r2": True}
