"""Downloads as jobs, from a local stub of the hub; the library's routes around them."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from mlxplatform.broker import queues
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import service
from mlxplatform.jobs.models import Job, JobEvent
from mlxplatform.jobs.pulse import Pulse
from mlxplatform.jobs.runner import run_next
from mlxplatform.library import choices, downloads, fit, local_models, reclaim
from mlxplatform.library import hub as library_hub
from mlxplatform.library.machine import Machine
from tests.fixtures import tiny_model
from tests.fixtures.stub_hub import COMMIT, StubHub, stub_hub
from tests.fixtures.trainer_jobs import payloads, wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("broker")]

REPO = "somebody/tiny"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubHub]:
    tiny_model.install(tmp_path, "source")
    source = tmp_path / "models" / "source"
    (source / "evil.py").write_text("raise SystemExit")
    (source / "weights.bin").write_bytes(b"\x80pickle")
    with stub_hub(source, REPO) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        yield hub


@pytest.fixture
def worker() -> Iterator[Pulse]:
    pulse = Pulse(queues.CPU_QUEUE)
    pulse.register()
    pulse.start()
    yield pulse
    pulse.drain()
    pulse.end()


def order(repo: str = REPO) -> Job:
    return downloads.submit(repo, project="default", created_by="test")


def test_a_download_becomes_a_model_of_the_library(hub: StubHub, worker: Pulse) -> None:
    job = order()
    assert run_next(worker)

    job.refresh_from_db()
    assert job.state == "done", job.error
    model = local_models.find(REPO, settings.HOME)
    assert model is not None and model.source == "hub" and model.path.name == COMMIT
    fetched = {path for _, path, _ in hub.requests}
    assert not any(path.endswith((".py", ".bin")) for path in fetched)
    shown = Client().get("/downloads").json()["downloads"][0]
    assert (shown["repo_id"], shown["state"], shown["files_total"]) == (REPO, "done", 5)
    assert shown["total_bytes"] > 400_000
    assert any(entry["id"] == REPO for entry in Client().get("/library").json()["models"])


def test_a_cancelled_download_goes_on_where_it_stopped(hub: StubHub, worker: Pulse) -> None:
    # The hub client writes in pieces of 10 MB; what arrived beyond the last one is fetched again.
    (hub.folder / "tokenizer.model").write_bytes(bytes(24_000_000))
    hub.stall_at = 12_000_000
    job = order()
    thread = threading.Thread(target=run_next, args=(worker,))
    thread.start()
    assert hub.stalled.wait(60)
    wait_until(lambda: downloads._arriving(REPO) >= 10_000_000)
    with pytest.raises(Refusal) as twice:
        order()
    assert twice.value.status == 409
    service.cancel(job.id, "test")
    thread.join(60)
    job.refresh_from_db()
    assert job.state == "cancelled"
    assert local_models.find(REPO, settings.HOME) is None
    hub.go.set()

    again = order()
    assert run_next(worker)

    again.refresh_from_db()
    assert again.state == "done", again.error
    spans = [span for _, path, span in hub.requests if path.endswith("tokenizer.model") and span]
    assert any(int(span.removeprefix("bytes=").rstrip("-")) > 0 for span in spans)
    assert local_models.find(REPO, settings.HOME) is not None
    told = payloads(again, "stage")
    assert told[-1]["received_bytes"] >= 24_000_000  # what the first attempt brought counts


def test_an_unreachable_hub_is_said_at_once(worker: Pulse, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    job = order()
    Job.objects.filter(pk=job.id).update(max_attempts=1)

    assert run_next(worker)

    job.refresh_from_db()
    assert (job.state, job.error_code) == ("failed", "offline")
    assert "offline" in job.error


def test_an_unknown_repository_is_said(hub: StubHub, worker: Pulse) -> None:
    job = order("somebody/other")
    assert run_next(worker)

    job.refresh_from_db()
    assert (job.state, job.error_code) == ("failed", "not_found")


#: What answers in the hub's place, with a part of the address → the code a job fails with, and words of its sentence.
ODD_HUBS: list[tuple[str, int, bytes, str, str]] = [
    ("/api/", 200, b"<html>Please log in</html>", "hub_error", "not the hub"),
    ("/api/", 200, b"[]", "hub_error", "not the hub"),
    ("/api/", 200, b'{"id": "somebody/tiny", "siblings": [{"rfilename": "../model.safetensors"}]}', "hub_error", "not the hub"),
    ("/api/", 401, b"{}", "no_access", "401"),
    ("/api/", 418, b"{}", "hub_refused", "418"),
    ("/api/", 429, b"{}", "hub_error", "429: too many requests"),
    ("/resolve/", 403, b"", "no_access", "403"),
]


#: Asks the hub once for each line, and tells how it went.
_ASKS = """
import json, shutil, sys
from mlxplatform.library import hub
for line in sys.stdin:
    if line == "full\\n": shutil.disk_usage = lambda path: shutil._ntuple_diskusage(9, 9, 5)
    try: hub.search("x") if line == "search\\n" else hub.pull("somebody/tiny")
    except hub.HubError as error: print(json.dumps([error.code, str(error)]), flush=True)
"""


#: The client asks a server in trouble again and again, for twenty seconds.
TROUBLED = ("/resolve/", 500, b"", "hub_error", "500")


@pytest.mark.parametrize("troubled", [False, pytest.param(True, marks=pytest.mark.drill)])
def test_whatever_answers_at_the_hubs_address_is_said(hub: StubHub, troubled: bool) -> None:
    searches = [
        ("/api/", 200, content, "hub_error", "not the hub") for content in (b"<html>", b'{"error": "x"}', b"[5]", b"[{}]")
    ]
    command = [sys.executable, "-c", _ASKS]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdin is not None
        every = (
            [("pull", TROUBLED)] if troubled else [*(("pull", one) for one in ODD_HUBS), *(("search", one) for one in searches)]
        )
        every += [] if troubled else [("full", ("nothing", 0, b"", "no_space", "the disk has 0.0 GiB free"))]
        for line, odd in every:
            where, status, content, code, words = odd
            hub.instead = (where, status, content)
            child.stdin.write(f"{line}\n")
            child.stdin.flush()
            said = json.loads(child.stdout.readline() or "[0, 0]")
            assert said[0] == code and words in said[1], (odd, said)


#: What is no name at all, and names that the hub gives nobody.
@pytest.mark.parametrize(
    "repo",
    ["tiny", "../../etc", "https://hub/x", None, 5, "a/b/c", "a/b--c", "a/b.git", "a/b.", "a-/b", "a/" + "b" * 95],
)
def test_only_repository_names_can_be_downloaded(repo: Any) -> None:
    answer = Client().post("/api/hub/download", json.dumps({"repo_id": repo}), content_type="application/json")

    assert (answer.status_code, answer.json()["field"]) == (400, "repo_id")
    assert Job.objects.count() == JobEvent.objects.count() == 0


def test_fit_counts_weights_cache_and_speed() -> None:
    tiny_model.install(settings.HOME, "fit-me")
    model = local_models.find("fit-me", settings.HOME)
    assert model is not None
    small = Machine("small", 1 << 30, 3 * model.bytes, 68e9, True, True)

    report = fit.assess(model, small, 2048)

    assert report.weights_bytes == model.bytes and report.kv_bytes == 256 * 2048
    assert report.fits and report.max_safe_context == 2048
    assert not fit.assess(model, Machine("tiny", 1 << 20, model.bytes // 2, 68e9, True, True)).fits
    assert fit.assess(model, Machine("cpu", 1 << 30, 1 << 30, 20e9, False, False)).weights_bytes == model.parameters * 4
    answer = Client().get("/fit?model=fit-me&context=100").json()
    assert answer["report"]["kv_bytes"] == 2 * 256 * 100 or answer["machine"]["metal"]
    assert len(answer["sku_matrix"]) > 20
    assert Client().get("/fit?model=../../etc").status_code == 404
    assert Client().get("/fit?model=fit-me&context=x").status_code == 400


def test_a_model_can_be_deleted_and_a_path_cannot() -> None:
    tiny_model.install(settings.HOME, "gone")

    assert Client().delete("/api/library/gone").json() == {"ok": True, "deleted": "gone"}
    assert Client().delete("/api/library/gone").status_code == 404
    assert Client().delete("/api/library/..%2f..%2fetc").status_code == 404


@pytest.mark.parametrize("state", ["queued", "running", "paused"])
def test_a_model_that_a_job_needs_is_not_deleted(state: str) -> None:
    tiny_model.install(settings.HOME, "needed")
    job = Job.objects.create(kind="finetune", queue="gpujobs.local", config={"model": "needed"}, state=state)

    answer = Client().delete("/api/library/needed")

    assert (answer.status_code, answer.json()["code"]) == (409, "model_in_use") and job.id in answer.json()["error"]
    Job.objects.filter(pk=job.id).update(state="done")
    assert Client().delete("/api/library/needed").status_code == 200


def test_disk_is_given_back_by_a_plan(hub: StubHub, worker: Pulse, tmp_path: Path) -> None:
    order()
    run_next(worker)
    blobs = tmp_path / "cache" / "models--somebody--tiny" / "blobs"
    (blobs / "abc.incomplete").write_bytes(b"x" * 100)
    left = settings.HOME / "models" / ".partial-0123"
    left.mkdir(parents=True)
    (left / ".lock").touch()

    plan = Client().get("/api/gc/plan").json()
    refused = Client().post("/api/gc/execute", "{}", content_type="application/json")
    done = Client().post("/api/gc/execute", json.dumps({"yes": True}), content_type="application/json").json()

    assert {item["kind"] for item in plan["items"]} == {"partial_download", "unfinished"}
    assert refused.status_code == 400
    assert {item["name"] for item in done["deleted"]} == {REPO, ".partial-0123"}
    assert reclaim.plan(()) == [] and not left.exists()
    assert local_models.find(REPO, settings.HOME) is not None


def plan() -> dict[str, str]:
    """Ids by name of what could go."""
    return {item["name"]: item["id"] for item in Client().get("/api/gc/plan").json()["items"]}


def carried_out(**body: Any) -> dict[str, Any]:
    answer = Client().post("/api/gc/execute", json.dumps({"yes": True, **body}), content_type="application/json")
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_only_what_was_shown_goes_and_what_came_into_use_stays(hub: StubHub, worker: Pulse, tmp_path: Path) -> None:
    order()
    run_next(worker)
    repo = tmp_path / "cache" / "models--somebody--tiny"
    (repo / "blobs" / "abc.incomplete").write_bytes(b"x" * 100)
    shown = plan()
    assert set(shown) == {REPO}
    (repo / "blobs" / "def.incomplete").write_bytes(b"y" * 50)  # not shown to whoever decided
    with library_hub.alone_with(REPO):  # somebody pulls it
        assert plan() == {}
        assert carried_out(items=[shown[REPO]]) | {"ok": True} == {"ok": True, "deleted": [], "kept": [shown[REPO]], "bytes": 0}
    waiting = order()
    assert plan() == {} and carried_out()["deleted"] == []
    service.cancel(waiting.id, "test")
    choices.set_pinned(REPO, True)
    assert plan() == {}
    choices.set_pinned(REPO, False)

    done = carried_out(items=[shown[REPO], "0" * 16])

    assert [item["id"] for item in done["deleted"]] == [shown[REPO]] and done["kept"] == ["0" * 16] and done["bytes"] == 100
    assert [path.name for path in (repo / "blobs").glob("*.incomplete")] == ["def.incomplete"]
    for items in ("all", [1]):
        body = json.dumps({"yes": True, "items": items})
        answer = Client().post("/api/gc/execute", body, content_type="application/json")
        assert (answer.status_code, answer.json()["field"]) == (400, "items")


def test_old_snapshots_go_with_what_they_alone_point_at(hub: StubHub, worker: Pulse, tmp_path: Path) -> None:
    order()
    run_next(worker)
    repo = tmp_path / "cache" / "models--somebody--tiny"
    newest = repo / "snapshots" / COMMIT
    outside = tmp_path / "theirs.txt"
    outside.write_text("keep me")
    for name, branch in (("a" * 40, ""), ("b" * 40, "main")):
        old = repo / "snapshots" / name
        old.mkdir()
        (repo / "blobs" / f"only-{name}").write_bytes(b"w" * 10)
        (old / "model.safetensors").symlink_to(Path("../../blobs") / f"only-{name}")
        (old / "config.json").symlink_to((newest / "config.json").resolve())
        (old / "README.md").symlink_to(outside)
        os.utime(old, (1, 1))
        if branch:
            (repo / "refs").mkdir(exist_ok=True)
            (repo / "refs" / branch).write_text(name)
    assert set(plan()) == {f"{REPO}@{'a' * 12}"}

    done = carried_out(items=list(plan().values()))

    assert done["bytes"] == 10 and done["kept"] == []
    assert sorted(path.name for path in (repo / "snapshots").iterdir()) == sorted([COMMIT, "b" * 40])
    assert outside.exists() and (newest / "config.json").is_file()
    assert not (repo / "blobs" / f"only-{'a' * 40}").exists() and (repo / "blobs" / f"only-{'b' * 40}").exists()


#: A pull that kills itself at a moment: MOMENT REPO.
_DIES = """
import os, signal, sys
from pathlib import Path
from mlxplatform.library import hub
from huggingface_hub import file_download
moment, repo = sys.argv[1:]
def die(): os.kill(os.getpid(), signal.SIGKILL)
left = 0
def plan(files, size):
    global left
    left = files
    if moment == "plan": die()
def one(name, done, total):
    global left
    left -= 1
    if moment == "last" and left == 1: die()
class Dying:
    def __init__(self, out): self.out = out
    def write(self, piece):
        self.out.write(piece); self.out.flush(); die()
    def __getattr__(self, name): return getattr(self.out, name)
get, rename = file_download.http_get, Path.rename
def mortal(out): return Dying(out) if out.name.endswith(".resumable.incomplete") else out  # the weights, that is
if moment == "piece": file_download.http_get = lambda url, out, **more: get(url, mortal(out), **more)
if moment == "verified": Path.rename = lambda path, to: die() if path.name.endswith(".resumable.incomplete") else rename(path, to)
hub.pull(repo, on_plan=plan, on_file=one)
"""
#: Where a download may be killed: before anything, in the middle of the weights, after them, and before the last file.
MOMENTS = ["plan", "piece", "verified", "last"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_download_killed_at_any_point_goes_on_and_is_whole(
    hub: StubHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    big = random.Random(7).randbytes(21 << 20)
    (hub.folder / "tokenizer.model").write_bytes(big)
    monkeypatch.setattr(settings, "HOME", tmp_path / "home")
    first = subprocess.run([sys.executable, "-c", _DIES, moment, REPO], cwd=ROOT, capture_output=True, text=True)
    assert first.returncode == -signal.SIGKILL, first.stderr[-2000:]
    assert local_models.find(REPO, tmp_path / "home") is None

    second = subprocess.run([sys.executable, "-c", _DIES, "never", REPO], cwd=ROOT, capture_output=True, text=True)

    assert second.returncode == 0, second.stderr[-2000:]
    model = local_models.find(REPO, tmp_path / "home")
    assert model is not None and (model.path / "tokenizer.model").read_bytes() == big
    asked = [span for _, path, span in hub.requests if path.endswith("tokenizer.model") and span]
    assert any(int(span.removeprefix("bytes=").rstrip("-")) > 0 for span in asked) == (moment == "piece")


def test_a_partial_file_longer_than_the_whole_is_begun_anew(hub: StubHub, tmp_path: Path) -> None:
    content = random.Random(8).randbytes(21 << 20)
    (hub.folder / "tokenizer.model").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    blobs = tmp_path / "cache" / "models--somebody--tiny" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{digest}.resumable.incomplete").write_bytes(content + b"more than all of it")

    done = subprocess.run([sys.executable, "-c", _DIES, "never", REPO], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr[-2000:]
    assert (blobs / digest).read_bytes() == content
