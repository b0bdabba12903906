"""The running platform with a moved clock: nightly synthesis through clock changes and missed nights, a batch and its time."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.memory_notes import CORPUS, jsonl
from tests.fixtures.moved_clock import MovedClock
from tests.system.batch_run import BatchRun
from tests.system.stack import Stack, eventually

pytestmark = pytest.mark.stack


def utc(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


@pytest.fixture
def clock(tmp_path: Path) -> MovedClock:
    return MovedClock(tmp_path / "clock", utc("2027-03-27T20:00"))


@pytest.fixture
def moved(home_template: Path, tmp_path: Path, clock: MovedClock) -> Iterator[Stack]:
    home = tmp_path / "home"
    shutil.copytree(home_template, home)
    with Stack(home, clock.environ) as running:
        yield running


def schedule(stack: Stack, name: str, **more: Any) -> str:
    body = {
        "name": name,
        "kind": "memory_synthesis",
        "config": {"vault": "wiki"},
        "cron": "30 2 * * *",
        "timezone": "Europe/Berlin",
    }
    made = stack.http.post("/api/schedules", json={**body, **more}).json()
    return f"/api/schedules/{made['schedule']['id']}"


def fired(stack: Stack, path: str, due: str) -> dict[str, Any]:
    """What became of the time that was due then."""

    def look() -> dict[str, Any] | None:
        firings = stack.http.get(f"{path}/firings").json()["firings"]
        return next((row for row in firings if dt.datetime.fromisoformat(row["due_at"]) == utc(due)), None)

    return eventually(look, what=f"the time due at {due}")


def done(stack: Stack, job: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = stack.http.get(f"/api/jobs/{job}").json()["job"]
        return found if found["state"] in {"done", "failed", "cancelled"} else None

    found = eventually(look, seconds=120, what=f"the end of {job}")
    assert found["state"] == "done", found["error"]
    return found["result"]


def next_time(stack: Stack, path: str) -> dt.datetime:
    return dt.datetime.fromisoformat(stack.http.get(path).json()["schedule"]["next_at"])


def test_nights_come_and_a_synthesis_runs_in_each_that_was_not_slept_through(moved: Stack, clock: MovedClock) -> None:
    moved.http.post("/api/memory/init", json={"policy": "auto"})
    order = {"format": "jsonl", "content": jsonl(CORPUS).decode()}
    done(moved, moved.http.post("/api/memory/import", json=order).json()["job"]["id"])
    night, strict = schedule(moved, "night"), schedule(moved, "strict", misfire="skip", cron="45 2 * * *")

    # On 28 March half past two does not exist in Berlin; the run comes right after the gap, by the clock alone.
    assert next_time(moved, night) == utc("2027-03-28T01:00")
    clock.set(utc("2027-03-28T00:59:58"))
    firing = fired(moved, night, "2027-03-28T01:00")
    assert (firing["outcome"], firing["note"]) == ("started", "")
    assert done(moved, firing["job"])["model_calls"] > 0
    ended = dt.datetime.fromisoformat(moved.http.get(f"/api/jobs/{firing['job']}").json()["job"]["ended_at"])
    assert utc("2027-03-28T01:00") <= ended < utc("2027-03-28T02:00")
    assert next_time(moved, night) == utc("2027-03-29T00:30")

    # Asleep for three nights: one run for all of them, or none, as its policy says; then the next night's time.
    clock.set(utc("2027-03-31T09:00"))
    firing = fired(moved, night, "2027-03-31T00:30")
    assert (firing["outcome"], firing["note"]) == ("started", "late by 8 h; missed since 2027-03-29 00:30 UTC")
    assert done(moved, firing["job"])["model_calls"] == 0
    firing = fired(moved, strict, "2027-03-31T00:45")
    assert (firing["outcome"], firing["job"]) == ("skipped", None) and "missed by 8 h" in firing["note"]
    assert next_time(moved, night) == utc("2027-04-01T00:30")

    # On 31 October half past two comes twice; the run comes once.
    clock.set(utc("2027-10-30T20:00"))
    assert fired(moved, night, "2027-10-30T00:30")["outcome"] == "started"
    clock.set(utc("2027-10-31T00:29:58"))
    first = fired(moved, night, "2027-10-31T00:30")
    assert first["note"] == "" and next_time(moved, night) == utc("2027-11-01T01:30")
    assert moved.http.get("/health").status_code == 200


def test_a_batch_goes_on_when_the_clock_is_set_and_keeps_what_it_has_when_its_time_is_up(moved: Stack, clock: MovedClock) -> None:
    run = BatchRun(moved, 3000)
    run.get_on("the clock is set forward")
    clock.set(utc("2027-03-27T23:00"))
    run.get_on("the clock is set back")
    clock.set(utc("2027-03-27T12:00"))
    run.get_on("its time is up")
    owned = moved.sql("select attempts from jobs_job where id = (select job_id from batches_batch where id = ?)", run.id)
    assert owned == [(1,)], "nobody was taken for dead because the clock was set"
    clock.set(utc("2027-03-29T00:00"))
    batch = eventually(lambda: (found := run.look()) and found.status == "expired" and found, seconds=60, what="the batch's end")
    counts = batch.request_counts
    assert counts.completed >= 60 and counts.completed + counts.failed == counts.total == 3000
    answered, others = _lines(moved, batch.output_file_id), _lines(moved, batch.error_file_id)
    assert Counter(line["custom_id"] for line in answered + others) == Counter(f"r{number}" for number in range(3000))
    assert (len(answered), len(others)) == (counts.completed, counts.failed)
    assert len([line for line in others if (line["error"] or {}).get("code") == "batch_expired"]) > 100


def _lines(stack: Stack, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stack.openai().files.content(file).content.splitlines()]
