"""What breaks around the platform: no broker, no disk, no place to write. A sentence or a JSON answer, never a traceback."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.stack import ROOT, Stack, clean_environment, eventually, free_port
from workers import broker_process

pytestmark = pytest.mark.stack

#: Largest file a process may write in the tests of a full disk, bytes: less than an empty database needs.
NO_ROOM = 64 * 1024
PAIRS = {
    "template": "sft_qa_pairs",
    "inputs": {"pairs_text": "Q: What is MLX?\nA: An array framework.\n\nQ: Why?\nA: Unified memory."},
}


class OwnBroker:
    """A Valkey the test may stop and start, on data that stays."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.socket = folder / "v.sock"
        self.url = f"unix://{self.socket}"
        self.start()

    def start(self) -> None:
        self.server = broker_process.start_server(self.folder, self.socket)

    def stop(self) -> None:
        self.server.kill()
        self.server.wait()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[OwnBroker]:
    broker = OwnBroker(tmp_path / "v")
    yield broker
    broker.stop()


def state(stack: Stack, job_id: str) -> str:
    return stack.http.get(f"/api/jobs/{job_id}").json()["job"]["state"]


def test_without_a_broker_chat_is_503_and_jobs_are_kept(make_stack: Callable[..., Stack], own_broker: OwnBroker) -> None:
    stack = make_stack(REDIS_URL=own_broker.url)
    assert "broker" not in stack.pids()
    own_broker.stop()

    chat = stack.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4})
    assert chat.status_code == 503
    assert chat.json()["error"]["type"] == "server_error"
    assert int(chat.headers["retry-after"]) > 0
    submitted = stack.http.post("/api/dataset/submit", json=PAIRS)
    assert submitted.status_code == 200, submitted.text
    assert state(stack, submitted.json()["job_id"]) == "queued"
    assert stack.http.get("/health").status_code == 503

    own_broker.start()
    eventually(lambda: state(stack, submitted.json()["job_id"]) == "done", seconds=90, what="the kept job's end")
    eventually(lambda: stack.http.get("/health").status_code == 200, what="health after the broker came back")
    again = stack.openai().chat.completions.create(model=stack.model, messages=[{"role": "user", "content": "Hi"}], max_tokens=4)
    assert again.choices[0].finish_reason


def start_with_little_room(home: Path) -> subprocess.CompletedProcess[str]:
    """A start in which no file may grow beyond NO_ROOM, as on a full disk."""
    return subprocess.run(
        [sys.executable, "-m", "workers.supervisor"],
        env=clean_environment(home, PORT=str(free_port())),
        cwd=ROOT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (NO_ROOM, NO_ROOM)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_full_disk_at_start_is_a_sentence(tmp_path: Path) -> None:
    done = start_with_little_room(tmp_path / "home")
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "the database cannot be used" in done.stdout or "cannot be written" in done.stdout


@pytest.mark.parametrize("home", ["/proc/nowhere", "/dev/null/home"])
def test_a_place_nobody_can_write_is_a_sentence(home: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "workers.supervisor"],
        env=clean_environment(Path(home), PORT=str(free_port())),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert f"the data directory {home} cannot be written" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of a running process can be set on Linux only")
def test_a_disk_that_fills_up_costs_writes_not_the_service(fresh_stack: Stack) -> None:
    pid = fresh_stack.pids()["web"]
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    refused = fresh_stack.http.post("/api/dataset/submit", json=PAIRS)
    assert refused.status_code in {500, 503, 507}, refused.text
    assert refused.json()["ok"] is False
    assert "Traceback" not in refused.text
    assert fresh_stack.http.get("/api/jobs").json()["ok"] is True
    assert fresh_stack.pids()["web"] == pid

    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    accepted = fresh_stack.http.post("/api/dataset/submit", json=PAIRS)
    assert accepted.status_code == 200, accepted.text
    eventually(lambda: state(fresh_stack, accepted.json()["job_id"]) == "done", what="the job's end")
