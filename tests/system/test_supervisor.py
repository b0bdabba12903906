"""Starting, refusing to start, and leaving nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.system.stack import ROOT, Stack, alive, clean_environment, eventually, free_port

pytestmark = pytest.mark.stack


def refusal(home: Path, **environ: str) -> str:
    """What the supervisor says when it does not start."""
    done = subprocess.run(
        [sys.executable, "-m", "workers.supervisor"],
        env=clean_environment(home, **environ),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.strip()


def test_a_second_run_on_the_same_data_directory_refuses(stack: Stack) -> None:
    said = refusal(stack.home, PORT=str(free_port()))
    assert f"already in use by a running platform (pid {stack.process.pid})" in said


def test_a_taken_port_is_said_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refusal(tmp_path / "home", PORT=str(port))
    assert f"port {port} on 127.0.0.1 is taken" in said
    assert not (tmp_path / "home" / "db.sqlite3").exists()


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("MLXPLATFORM_PROT", "1", "MLXPLATFORM_PROT is not a setting"),
        ("MLXPLATFORM_PORT", "http", "MLXPLATFORM_PORT='http' cannot be used"),
        ("PORT", "99999", "use a number from 1 to 65535"),
        ("MLXPLATFORM_AUTH", "no", "use one of auto, required"),
        ("MLXPLATFORM_HOST", "no.such.host.invalid", "not an address of this machine"),
    ],
)
def test_bad_settings_are_one_sentence(tmp_path: Path, name: str, value: str, word: str) -> None:
    said = refusal(tmp_path / "home", **{name: value})
    assert word in said
    assert len(said.splitlines()) == 1


def test_serving_other_machines_without_a_key_is_refused_before_anything_starts(home_template: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(home_template, home)
    environ = clean_environment(home, MLXPLATFORM_HOST="0.0.0.0", MLXPLATFORM_MODEL="tiny", PORT=str(free_port()))
    command = [sys.executable, "-m", "workers.supervisor"]
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "MLXPLATFORM_HOST=0.0.0.0 would serve other machines without any key" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert not (home / "broker").exists()


def test_a_data_directory_that_is_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("not a folder")
    said = refusal(tmp_path / "home", PORT=str(free_port()))
    assert "cannot be written" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_an_orderly_end_leaves_no_process(make_stack: Callable[..., Stack], signum: signal.Signals) -> None:
    stack = make_stack()
    left = stack.descendants()
    os.kill(stack.process.pid, signum)  # make passes on what the terminal or a service manager has sent to all already
    assert stack.stop(signum) == 0
    assert "is killed" not in stack.terminal()
    assert not [pid for pid in left if alive(pid)]
    assert "Traceback" not in stack.terminal()


def test_a_killed_supervisor_leaves_no_process_and_the_next_start_works(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack()
    left = stack.descendants()
    assert any("valkey-server" in command for command in left.values())
    os.kill(stack.process.pid, signal.SIGKILL)
    stack.process.wait()
    eventually(lambda: not [pid for pid in left if alive(pid)], seconds=15, what="the end of every process")
    stack.start()
    stack.wait_ready()


def test_a_crash_is_one_clear_line_and_a_restart(fresh_stack: Stack) -> None:
    pid = fresh_stack.pids()["scheduler"]
    fresh_stack.kill_and_wait("scheduler")
    assert fresh_stack.terminal().count(f"scheduler (pid {pid}) was killed by SIGKILL; starting it again in 0.2 s") == 1
    assert fresh_stack.http.get("/health").status_code == 200


def signed_in(stack: Stack) -> str:
    """The session of a person on a page."""
    with httpx.Client(base_url=stack.base_url, timeout=60) as browser:
        token = browser.get("/login/").cookies["csrftoken"]
        form = {"username": "admin", "password": stack.admin_password(), "csrfmiddlewaretoken": token}
        assert browser.post("/login/", data=form).status_code == 302
        return browser.cookies["sessionid"]


def test_a_web_process_takes_over_and_the_old_one_ends_its_answers(fresh_stack: Stack) -> None:
    http, old = fresh_stack.http, fresh_stack.pids()["web"]
    assert http.post("/api/queues/cpu/pause").status_code == 200
    order = {"template": "sft_qa_pairs", "inputs": {"pairs_text": "Q: Who?\nA: Me."}}
    job = http.post("/api/dataset/submit", json=order).json()["job_id"]
    address = f"{fresh_stack.base_url}/api/jobs/{job}/stream"
    person = {"sessionid": signed_in(fresh_stack)}
    with httpx.stream("GET", address, timeout=60) as stream, httpx.stream("GET", address, timeout=60, cookies=person) as page:
        lines = stream.iter_lines()
        next(lines)
        assert fresh_stack.manage("restart").returncode == 0
        asked = 0
        while fresh_stack.pids()["web"] == old:  # not one connection is refused meanwhile
            assert httpx.get(f"{fresh_stack.base_url}/livez", timeout=60).status_code == 200
            asked += 1
        assert "event: end" not in page.read().decode(), "a page's stream ends early, for the browser to come back"
        assert asked and alive(old)
        assert httpx.post(f"{fresh_stack.base_url}/api/queues/cpu/resume", timeout=60).status_code == 200
        assert '"type":"done"' in "".join(lines)
    eventually(lambda: not alive(old), what="the end of the old web process")
    assert http.get(f"/api/jobs/{job}").json()["job"]["state"] == "done"
    fresh_stack.kill("web")
    assert httpx.get(f"{fresh_stack.base_url}/livez", timeout=60).status_code == 200  # waits for the next one


def test_a_broker_whose_guard_was_killed_is_replaced(fresh_stack: Stack) -> None:
    """Its orphan holds the guard's output open, which must not hide the guard's death."""
    old_servers = [pid for pid, command in fresh_stack.descendants().items() if "valkey-server" in command]
    fresh_stack.kill_and_wait("broker")
    body = {"model": fresh_stack.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    # Each process finds the new broker in its own time; until then the answer is 503 with Retry-After.
    eventually(lambda: fresh_stack.http.post("/v1/chat/completions", json=body).status_code == 200, what="an answer")
    assert not [pid for pid in old_servers if alive(pid)]
