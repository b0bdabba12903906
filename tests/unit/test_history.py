"""The response history's bounds and ownership, on the real database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mlxplatform.inference import history
from mlxplatform.inference.contract import Admitted, Event, Finished, Text, Usage
from mlxplatform.inference.history import Kind, Record, Status
from mlxplatform.inference.models import StoredAnswer

pytestmark = pytest.mark.django_db


def record(answer_id: str, **more: Any) -> Record:
    values: dict[str, Any] = {"kind": Kind.RESPONSE, "project": "default", "model": "m", "request": {}, "items": [], "answer": {}}
    return Record(**{"id": answer_id, "metadata": {}, **values, **more})


def loaded(answer_id: str, project: str = "default") -> StoredAnswer | None:
    return history.load(answer_id, Kind.RESPONSE, project)


def test_rows_of_another_project_do_not_exist() -> None:
    history.save(record("r1", project="a"))
    assert loaded("r1", "a") is not None
    assert loaded("r1", "b") is None
    assert not history.delete("r1", Kind.RESPONSE, "b")
    assert not history.update_metadata("r1", Kind.RESPONSE, "b", {"x": "y"})


def test_an_id_with_nul_names_nothing() -> None:
    with CaptureQueriesContext(connection) as queries:
        assert loaded("r1\0") is None
    assert not queries, "PostgreSQL fails on it"


def test_expired_rows_are_gone_before_they_are_swept() -> None:
    history.save(record("old"))
    StoredAnswer.objects.filter(id="old").update(expires_at=timezone.now() - timedelta(seconds=1))
    assert loaded("old") is None
    history.save(record("new"))
    assert history.sweep() == 1
    assert loaded("new") is not None


def test_the_least_recently_used_go_beyond_the_byte_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MIB", 3)  # the cap is HISTORY_MB times this: 3 kB
    now = timezone.now()
    for age, name in enumerate(["r1", "r2", "r3", "r4"]):
        history.save(record(name, answer={"text": "x" * 900}))
        StoredAnswer.objects.filter(id=name).update(used_at=now - timedelta(hours=10 - age))
    assert loaded("r1") is not None, "a read makes it young"
    history.sweep()
    assert loaded("r2") is None
    assert loaded("r1") is not None and loaded("r4") is not None


def test_an_answer_ends_once() -> None:
    history.save(record("r1", status=Status.IN_PROGRESS))
    assert history.end("r1", Status.CANCELLED, {"status": "cancelled"}, None)
    assert not history.end("r1", Status.COMPLETED, {"status": "completed"}, b"")
    row = loaded("r1")
    assert row is not None and row.status == Status.CANCELLED


def test_events_come_back_as_they_were() -> None:
    events: list[Event] = [Admitted(1, "m"), Text("a\x00b"), Finished("stop", Usage(1, 2))]
    assert history.unpack_events(history.pack_events(events)) == events


def test_text_with_nul_is_kept() -> None:
    history.save(record("r1", answer={"text": "a\x00b"}))
    row = loaded("r1")
    assert row is not None and history.loads(row.answer) == {"text": "a\x00b"}


def test_pages_follow_each_other() -> None:
    for name in ("r1", "r2", "r3"):
        history.save(record(name, kind=Kind.CHAT))
    first, more = history.page(Kind.CHAT, "default", limit=2, after=None, ascending=True)
    rest, end = history.page(Kind.CHAT, "default", limit=2, after=first[-1].id, ascending=True)
    assert [row.id for row in first + rest] == ["r1", "r2", "r3"]
    assert (more, end) == (True, False)
