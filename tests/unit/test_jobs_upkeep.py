"""Doctor, retention, queue pauses and outlooks."""

from __future__ import annotations

import datetime as dt
import io

import pytest
import redis
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from mlxplatform.batches.models import Batch, BatchLine
from mlxplatform.batches.service import create as create_batch
from mlxplatform.files import blobs
from mlxplatform.files import service as files
from mlxplatform.jobs import moves, retention, service
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.moves import Holder, NewEvent
from mlxplatform.jobs.outlook import estimate
from mlxplatform.jobs.pulse import Pulse
from mlxplatform.jobs.runner import run_next
from mlxplatform.operations.doctor import examine
from tests.fixtures import job_kinds

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker")]


@pytest.fixture(scope="module", autouse=True)
def _kinds() -> None:
    job_kinds.register()


@pytest.fixture(autouse=True)
def _clean_disk() -> None:
    for blob_id in list(blobs.stored_ids()):
        blobs.remove(blob_id)


def run_doctor(*options: str) -> tuple[str, bool]:
    """What it said, and whether everything is well now."""
    out = io.StringIO()
    try:
        call_command("doctor", *options, stdout=out)
    except SystemExit:
        return out.getvalue(), False
    return out.getvalue(), True


def test_a_healthy_platform_has_no_findings() -> None:
    service.submit("test.lines", {"n": 1})
    files.store([b"x\n"], "a.jsonl", "batch")
    assert run_doctor() == ("Everything agrees.\n", True)


def test_what_disagrees_is_named_and_repaired(broker: redis.Redis) -> None:
    queued = service.submit("test.lines", {"n": 1})
    orphan = service.submit("test.forever", {}, priority=9)
    moves.claim("cpu", "a worker that is gone")
    blobs.write("file-nobody", [b"x"])
    file = files.store([b"x\n"], "a.jsonl", "batch")
    blobs.path_of(file.id).write_bytes(b"longer than before")
    broker.flushall()
    said, well = run_doctor()
    assert not well
    for subject in (queued.id, orphan.id, "file-nobody", file.id):
        assert subject in said
    run_doctor("--repair")
    left = examine()
    assert [finding.subject for finding in left] == [file.id]
    orphan.refresh_from_db()
    assert orphan.state == "queued"
    assert broker.llen("dramatiq:cpu") >= 1


def test_a_batch_nobody_ends_is_given_somebody() -> None:
    file = files.store([b"x\n"], "a.jsonl", "batch")
    batch = create_batch("openai", "/v1/chat/completions", file, project="default", created_by="local")
    Job.objects.filter(pk=batch.job_id).update(state="failed", last_seq=1, owner="")
    assert batch.id in {finding.subject for finding in examine()}
    run_doctor("--repair")
    assert Job.objects.get(kind="batch.finish").config == {"batch": batch.id, "way": "interrupted"}
    assert batch.id not in {finding.subject for finding in examine()}
    assert Batch.objects.get().status == "validating"


def test_a_death_between_the_end_of_a_batch_and_the_end_of_its_job_is_made_good() -> None:
    file = files.store([b"x\n"], "a.jsonl", "batch")
    batch = create_batch("openai", "/v1/chat/completions", file, project="default", created_by="local")
    batch.refresh_from_db()
    assert batch.job_id is not None
    Batch.objects.filter(pk=batch.id).update(status="completed", total=1, succeeded=1)
    BatchLine.objects.create(batch=batch, number=1, outcome="succeeded", text="{}")
    Job.objects.filter(pk=batch.job_id).update(attempts=1)  # the attempt that died
    pulse = Pulse("cpu")
    pulse.register()
    assert run_next(pulse)
    job = Job.objects.get(pk=batch.job_id)
    assert (job.state, job.result["status"]) == ("done", "completed")
    assert not BatchLine.objects.exists()


def test_old_logs_go_but_the_end_stays() -> None:
    ended, recent = (service.submit("test.lines", {"n": n}) for n in range(2))
    for _ in (ended, recent):
        claimed = moves.claim("cpu", "w")
        assert claimed is not None
        moves.move(claimed.id, "done", holder=Holder("w", claimed.fence), events=[NewEvent("log", {"line": "x"})] * 5)
    Job.objects.filter(pk=ended.id).update(ended_at=timezone.now() - dt.timedelta(days=91))
    assert retention.sweep() == 7
    assert list(ended.events.values_list("seq", "type")) == [(8, "done")]
    assert recent.events.count() == 8
    assert retention.sweep() == 0


def test_a_paused_queue_starts_nothing_until_it_goes_on(client: Client) -> None:
    service.submit("test.lines", {"n": 1})
    assert client.post("/api/queues/cpu/pause", content_type="application/json").json()["queue"]["paused"]
    assert moves.claim("cpu", "w") is None
    (shown,) = client.get("/api/queues").json()["queues"]
    assert (shown["name"], shown["paused"], shown["jobs"]) == ("cpu", True, {"queued": 1})
    client.post("/api/queues/cpu/resume", content_type="application/json")
    assert moves.claim("cpu", "w") is not None
    assert client.post("/api/queues/none/pause", content_type="application/json").status_code == 404


def test_a_job_knows_its_place_and_its_end(client: Client) -> None:
    first, second = (service.submit("test.lines", {"n": n}) for n in range(2))
    urgent = service.submit("test.lines", {"n": 5}, priority=1)
    places = {job.id: client.get(f"/api/jobs/{job.id}").json()["job"]["position"] for job in (first, second, urgent)}
    assert places == {urgent.id: 1, first.id: 2, second.id: 3}


def test_estimates_bracket_steady_progress_and_stay_silent_without() -> None:
    steady = [(100.0 + 10 * n, n / 10 + (n % 2) / 1000) for n in range(6)]
    said = estimate(steady)
    assert said is not None
    assert said["earliest"] <= said["done_at"] <= said["latest"]
    assert said["done_at"] == pytest.approx(200, abs=5)
    assert estimate([(1.0, 0.1)]) is None
    assert estimate([(float(n), 0.5) for n in range(9)]) is None


def test_the_lease_is_shown(client: Client) -> None:
    (shown,) = client.get("/api/lease").json()["leases"]
    assert (shown["host"], shown["holders"], shown["waiters"]) == ("local", [], [])
    assert client.get("/api/lease", {"host": "elsewhere"}).status_code == 404


def test_the_upkeep_page_shows_and_repairs(admin_client: Client, client: Client, broker: redis.Redis) -> None:
    service.submit("test.lines", {"n": 1})
    broker.flushall()
    page = admin_client.get("/admin/upkeep/").content.decode()
    assert "holds no message" in page
    assert "Nobody holds it" in page
    assert admin_client.post("/admin/upkeep/").status_code == 302
    assert "Database, broker and disk agree" in admin_client.get("/admin/upkeep/").content.decode()
    assert client.get("/admin/upkeep/").status_code == 302
