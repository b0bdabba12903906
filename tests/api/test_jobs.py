"""``/api/jobs`` over HTTP: shapes, paging, streams that can be cut anywhere, and what bad input gets."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.admin.utils import quote
from django.test import AsyncClient, Client
from redis import Redis

from mlxplatform.accounts.models import AuditEntry
from mlxplatform.http import leaving
from mlxplatform.jobs import moves, service, streams
from mlxplatform.jobs.feed import feed
from mlxplatform.jobs.models import Job, QueuePause, Worker
from mlxplatform.jobs.moves import Holder, NewEvent
from mlxplatform.jobs.wire import job_json
from tests.api.test_ownership import RED, signed_in
from tests.fixtures import job_kinds

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker")]


@pytest.fixture(scope="module", autouse=True)
def _kinds() -> None:
    job_kinds.register()


def finished(lines: int = 3) -> Job:
    job = service.submit("test.lines", {"n": lines}, priority=9)
    claimed = moves.claim("cpu", "w")
    assert claimed is not None
    events = [NewEvent("log", {"line": f"line {number}"}) for number in range(1, lines + 1)]
    return moves.move(job.id, "done", holder=Holder("w", claimed.fence), events=events, result={})


async def frames(path: str, **headers: str) -> list[dict[str, Any]]:
    """Every event of a stream that ends, as {id, event, data}; the stream must end by itself."""
    response = await AsyncClient().get(path, headers=headers)
    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/event-stream")
    assert response["X-Accel-Buffering"] == "no"
    raw = b"".join([chunk async for chunk in response.streaming_content])
    return parse(raw)


def parse(raw: bytes) -> list[dict[str, Any]]:
    parsed = []
    for block in raw.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if "data" in fields:
            parsed.append({"id": fields.get("id"), "event": fields.get("event"), "data": json.loads(fields["data"])})
    return parsed


def test_list_detail_and_404_shapes(client: Client) -> None:
    job = finished()
    listed = client.get("/api/jobs").json()
    assert listed["ok"] is True
    assert [one["id"] for one in listed["jobs"]] == [job.id]
    detail = client.get(f"/api/jobs/{job.id}").json()
    assert detail["ok"] is True
    assert detail["job"]["state"] == detail["job"]["status"] == "done"
    for path in ("/api/jobs/job_0000000000000000", "/api/jobs/job_0000000000000000/stream", "/api/jobs/x/events"):
        missing = client.get(path)
        assert missing.status_code == 404
        assert missing.json() == {"ok": False, "error": "job not found", "code": "job_not_found", "field": None}
    assert client.post("/api/jobs/x/cancel", content_type="application/json").status_code == 404


@pytest.mark.parametrize("limit", ["0", "-1", "abc", "1001", "1.5", "NaN", "٣", "9" * 40])
def test_bad_limits_name_the_field(client: Client, limit: str) -> None:
    answer = client.get("/api/jobs", {"limit": limit})
    assert answer.status_code == 400
    assert answer.json()["field"] == "limit"


def test_bad_states_and_cursors_name_the_field(client: Client) -> None:
    for field, value in (("state", "banana"), ("after", "job_nope")):
        answer = client.get("/api/jobs", {field: value})
        assert (answer.status_code, answer.json()["field"]) == (400, field)


def test_pages_cover_every_job_once_and_tell_the_truth(client: Client) -> None:
    made = [service.submit("test.lines", {"n": n}).id for n in range(7)]
    Job.objects.filter(pk__in=made[2:5]).update(created_at=Job.objects.get(pk=made[2]).created_at)
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = client.get("/api/jobs", query).json()
        seen += [job["id"] for job in page["jobs"]]
        if not page["has_more"]:
            break
        query["after"] = page["next"]
    assert sorted(seen) == sorted(made)
    assert len(client.get("/api/jobs", {"state": "queued,done", "kind": "test.lines"}).json()["jobs"]) == 7
    assert client.get("/api/jobs", {"kind": "other"}).json()["jobs"] == []


def test_wrong_method_is_405_json(client: Client) -> None:
    answer = client.delete("/api/jobs")
    assert (answer.status_code, answer.json()["ok"], answer["Allow"]) == (405, False, "GET, HEAD")
    assert client.get("/api/jobs/x/cancel").status_code == 405


def test_posts_need_no_form_token() -> None:
    job = service.submit("test.lines", {"n": 1})
    answer = Client(enforce_csrf_checks=True).post(f"/api/jobs/{job.id}/cancel", content_type="application/json")
    assert (answer.status_code, answer.json()["ok"]) == (200, True)


def test_cancel_retry_and_audit(client: Client) -> None:
    from mlxplatform.accounts.models import AuditEntry

    job = service.submit("test.lines", {"n": 1})
    for _ in range(2):
        answer = client.post(f"/api/jobs/{job.id}/cancel", content_type="application/json")
        assert (answer.status_code, answer.json()["job"]["state"]) == (200, "cancelled")
    assert client.post(f"/api/jobs/{job.id}/retry", content_type="application/json").json()["job"]["state"] == "queued"
    entry = AuditEntry.objects.filter(target=job.id, action="job.cancel").order_by("pk").first()
    assert entry is not None
    assert (entry.before["state"], entry.after["state"]) == ("queued", "cancelled")
    done = finished()
    refused = client.post(f"/api/jobs/{done.id}/cancel", content_type="application/json")
    assert (refused.status_code, refused.json()["code"]) == (400, "job_ended")


def test_bulk_cancel_by_filter(client: Client) -> None:
    for n in range(3):
        service.submit("test.lines", {"n": n})
    answer = client.post("/api/jobs/bulk/cancel", {"kind": "test.lines", "state": "queued"}, content_type="application/json")
    assert len(answer.json()["changed"]) == 3
    for nothing_named in (
        {},
        {"ids": None},
        {"kind": None, "state": None},
        {"kind": ""},
        {"state": " "},
        {"kind": ","},
        {"kind": "\0"},
        {"ids": ["\0"]},
    ):
        assert client.post("/api/jobs/bulk/cancel", nothing_named, content_type="application/json").status_code == 400
    assert client.post("/api/jobs/bulk/cancel", {"colour": 1}, content_type="application/json").json()["field"] == "colour"


async def test_a_stream_of_an_ended_job_replays_and_closes() -> None:
    job = await sync_to_async(finished)()
    got = await frames(f"/api/jobs/{job.id}/stream")
    assert [frame["id"] for frame in got] == ["1", "2", "3", "4", "5", "6", None]
    assert (got[-2]["data"]["type"], got[-1]["event"]) == ("done", "end")


async def test_a_cut_anywhere_joins_to_the_same_events() -> None:
    job = await sync_to_async(finished)(5)
    whole = await frames(f"/api/jobs/{job.id}/stream")
    for cut in range(job.last_seq + 1):
        rest = await frames(f"/api/jobs/{job.id}/stream", **{"Last-Event-ID": str(cut)})
        assert whole[:cut] + rest == whole


@pytest.mark.parametrize("wrong", ["999999", "-1", "abc", "1" + "0" * 30, "1.0", "job_abc:3", "٣"])
async def test_an_unservable_position_resets_and_replays(wrong: str) -> None:
    job = await sync_to_async(finished)()
    got = await frames(f"/api/jobs/{job.id}/stream", **{"Last-Event-ID": wrong.encode().decode("latin-1")})
    assert (got[0]["event"], got[0]["id"], got[0]["data"]["id"]) == ("reset", None, job.id)
    assert [frame["id"] for frame in got[1:-1]] == ["1", "2", "3", "4", "5", "6"]


async def test_a_position_older_than_what_is_kept_resets() -> None:
    job = await sync_to_async(finished)()
    await sync_to_async(lambda: job.events.filter(seq__lte=3).delete())()
    got = await frames(f"/api/jobs/{job.id}/stream", **{"Last-Event-ID": "1"})
    assert got[0]["event"] == "reset"
    assert [frame["id"] for frame in got[1:-1]] == ["4", "5", "6"]


async def collect(content: AsyncIterator[bytes], pause: float = 0.0) -> list[int]:
    raw = b""
    async for chunk in content:
        raw += chunk
        await asyncio.sleep(pause)
    return [int(frame["id"]) for frame in parse(raw) if frame["id"]]


async def test_a_burst_reaches_every_viewer_in_order() -> None:
    """500 events in one go, five viewers of which one reads slowly: nobody misses or reorders any."""
    job = await sync_to_async(service.submit)("test.lines", {"n": 1})
    claimed = await sync_to_async(moves.claim)("cpu", "w")
    viewers = []
    for pause in (0.0, 0.0, 0.0, 0.0, 0.02):
        response = await AsyncClient().get(f"/api/jobs/{job.id}/stream")
        viewers.append(asyncio.ensure_future(collect(response.streaming_content, pause)))
    holder = Holder("w", claimed.fence)
    for start in range(0, 500, 25):
        batch = [NewEvent("log", {"line": str(start + i)}) for i in range(25)]
        await sync_to_async(moves.append)(job.id, holder, batch)
    await sync_to_async(moves.move)(job.id, "done", holder=holder)
    for viewer in viewers:
        assert await viewer == list(range(1, 504))


async def test_streams_work_without_any_announcement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxplatform.jobs.wake.announce", lambda job_id: None)
    job = await sync_to_async(service.submit)("test.lines", {"n": 1})
    response = await AsyncClient().get(f"/api/jobs/{job.id}/stream")
    viewer = asyncio.ensure_future(collect(response.streaming_content))
    await asyncio.sleep(0)
    await sync_to_async(service.cancel)(job.id)
    assert await viewer == [1, 2]


def test_the_log_downloads_as_whole_lines(client: Client) -> None:
    job = finished(1200)

    async def read() -> bytes:
        response = await AsyncClient().get(f"/api/jobs/{job.id}/events")
        return b"".join([chunk async for chunk in response.streaming_content])

    body = asyncio.run(read())
    assert body.endswith(b"\n")
    assert [json.loads(line)["seq"] for line in body.splitlines()] == list(range(1, job.last_seq + 1))


async def test_the_csv_export_is_whole_and_inert() -> None:
    evil = ["=1+1", "+1", "@SUM(A1)", "-1+2", "\t=1", "\r=1", "\ufeff=1", "\uff1d1", "plain", 'a "quoted", line']
    for text in evil:
        job = await sync_to_async(service.submit)("test.lines", {"text": text})
        await Job.objects.filter(pk=job.id).aupdate(message=text)
    response = await AsyncClient().get("/api/jobs.csv?kind=test.lines")
    raw = b"".join([chunk async for chunk in response.streaming_content]).decode()
    table = list(csv.DictReader(io.StringIO(raw, newline="")))
    assert [row["message"] for row in table[::-1]] == [f"'{text}" for text in evil[:8]] + evil[8:]
    assert (await AsyncClient().get("/api/jobs.csv?state=x")).status_code == 400


def websocket(job_id: str, peer: str = "127.0.0.1") -> Any:
    from channels.testing import WebsocketCommunicator

    from mlxplatform.asgi import application

    headers = [(b"host", b"localhost"), (b"origin", b"http://localhost")]
    socket = WebsocketCommunicator(application, f"/ws/jobs/{job_id}", headers=headers)
    socket.scope["client"] = [peer, 50000]
    return socket


async def test_pages_are_sent_away_when_their_web_process_leaves_and_programs_stay() -> None:
    job = await sync_to_async(service.submit)("test.lines", {"n": 1})
    page, program = (feed().follow(job.id, 0, returns=returns) for returns in (True, False))
    for reader in (page, program):
        assert [event["seq"] for event in await anext(reader)] == [1]
    frames = streams.job_frames(job_json(job), 1, returns=True)
    assert await anext(frames) == streams.RETRY
    waiting = [asyncio.ensure_future(anext(reader, None)) for reader in (page, program, frames)]
    await asyncio.sleep(0)
    await leaving.begin()
    assert await waiting[0] is None
    assert await waiting[2] is None, "without 'end': the browser comes back"
    assert not waiting[1].done()
    await sync_to_async(service.cancel)(job.id)
    assert [event["type"] for event in await waiting[1]] == ["cancelled"]
    # Who comes to the leaving process all the same gets what there is, and is sent on.
    late = [frame async for frame in streams.job_frames(job_json(job), 0, returns=True)]
    assert b'"cancelled"' in b"".join(late)
    assert streams.END not in late


async def test_websocket_replays_follows_and_says_404() -> None:
    job = await sync_to_async(service.submit)("test.lines", {"n": 1})
    socket = websocket(job.id)
    assert (await socket.connect())[0]
    assert json.loads(await socket.receive_from())["seq"] == 1
    await sync_to_async(service.cancel)(job.id)
    assert json.loads(await socket.receive_from(timeout=10))["type"] == "cancelled"
    assert (await socket.receive_output(timeout=10))["code"] == 1000

    lost = websocket("job_0")
    assert (await lost.connect())[0]
    assert (await lost.receive_output(timeout=10))["code"] == 4404


async def test_websocket_needs_what_the_api_needs() -> None:
    job = await sync_to_async(service.submit)("test.lines", {"n": 1})
    assert not (await websocket(job.id, peer="192.0.2.7").connect())[0]


async def test_a_websocket_to_any_other_path_is_turned_away() -> None:
    for path in ("../../v1/chat/completions", "a/b", ""):
        assert not (await websocket(path).connect())[0]


def test_admin_shows_markup_as_text(admin_client: Client) -> None:
    evil = "<img src=x onerror=alert(1)></pre><script>alert(1)</script>"
    job = service.submit("test.lines", {"n": 1, "prompt": evil})
    Job.objects.filter(pk=job.id).update(message=evil, error=evil, result={"text": evil})
    for path in ("/admin/jobs/job/", f"/admin/jobs/job/{quote(job.id)}/change/"):
        page = admin_client.get(path)
        assert page.status_code == 200
        text = page.content.decode()
        assert "<img src=x" not in text
        assert "<script>alert" not in text
        assert "&lt;img src=x" in text


def test_admin_cancels_and_retries(admin_client: Client) -> None:
    job = service.submit("test.lines", {"n": 1})
    for action, state in (("cancel_jobs", "cancelled"), ("retry_jobs", "queued")):
        admin_client.post("/admin/jobs/job/", {"action": action, "_selected_action": [job.id]})
        job.refresh_from_db()
        assert job.state == state


def test_admin_pauses_and_resumes_a_queue_on_record(admin_client: Client) -> None:
    admin_client.post("/admin/jobs/queuepause/add/", {"queue": "cpu"})
    assert QueuePause.objects.get().paused_by == "user:admin"
    admin_client.post("/admin/jobs/queuepause/cpu/delete/", {"post": "yes"})
    assert not QueuePause.objects.exists()
    said = AuditEntry.objects.filter(target="cpu").order_by("id").values_list("actor", "action")
    assert list(said) == [("user:admin", "queue.pause"), ("user:admin", "queue.resume")]


def test_a_held_queue_is_seen_by_all_and_let_go_on_by_an_operator(broker: Redis) -> None:
    job = service.submit("test.lines", {"n": 1}, project=RED)
    member, operator = signed_in("bea", "member", RED), signed_in("otto", "operator", RED)
    assert "Hold a queue" not in member.get("/console/jobs").content.decode()
    for action in ("hold", "go-on"):
        assert member.post("/console/queues/action", {"queue": "cpu", "action": action}).status_code == 403
    assert not QueuePause.objects.exists()
    Worker.objects.create(id="w", queue="cpu", machine="m", pid=1, threads=1)
    assert "Hold a queue" in operator.get("/console/jobs").content.decode()
    operator.post("/console/queues/action", {"queue": "cpu", "action": "hold"})
    assert QueuePause.objects.get().paused_by == "user:otto"
    for page in ("/", "/console/jobs", f"/console/jobs/{job.id}"):
        seen, may = member.get(page).content.decode(), operator.get(page).content.decode()
        assert "held by user:otto" in seen
        assert "Let it go on" not in seen
        assert ("Let it go on" in may) == (job.id not in page)
    broker.flushall()
    done = operator.post("/console/queues/action", {"queue": "cpu", "action": "go-on", "back": "home"})
    assert (done.status_code, done["Location"]) == (302, "/")
    assert not QueuePause.objects.exists()
    assert broker.keys("*wake:cpu*"), "a worker is told at once"
    said = AuditEntry.objects.filter(target="cpu").order_by("id").values_list("actor", "action")
    assert list(said) == [("user:otto", "queue.pause"), ("user:otto", "queue.resume")]
    assert operator.post("/console/queues/action", {"queue": "none", "action": "hold"}, follow=True).status_code == 200
    assert not QueuePause.objects.exists()
