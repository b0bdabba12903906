"""Two GPU hosts on one broker and one database: work goes where its model is, and a host's loss moves it on."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import tiny_model
from tests.system.stack import MODEL, ROOT, Stack, eventually

pytestmark = pytest.mark.stack

OTHER = "second"
#: A model that only the second host has.
ONLY_THERE = "elsewhere"


class SecondHost:
    """A gpu process as it would run on another Mac: its own data directory and models, the first one's broker and SQL."""

    def __init__(self, stack: Stack, home: Path) -> None:
        self.stack, self.home = stack, home
        shutil.copytree(stack.home / "models", home / "models")
        tiny_model.install(home, ONLY_THERE, steps=tiny_model.TRAINED_STEPS)
        shutil.copy(stack.home / "secret_key", home / "secret_key")
        # Machines share what files hold; here the share is the first one's folder.
        (home / "artefacts").symlink_to(stack.home / "artefacts")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        from mlxplatform import paths

        environ = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "mlxplatform.settings",
            "PYTHONPATH": str(ROOT),
            "MLXPLATFORM_HOME": str(self.home),
            "MLXPLATFORM_HOST_ID": OTHER,
            "MODEL": MODEL,
            "REDIS_URL": f"unix://{paths.broker_socket(self.stack.home)}",
            "DATABASE_URL": f"sqlite:///{self.stack.home}/db.sqlite3",
        }
        with (self.home / "gpu.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "workers.gpu"], env=environ, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def hosts(make_stack: Callable[..., Stack], tmp_path: Path) -> Iterator[tuple[Stack, SecondHost]]:
    stack = make_stack()
    second = SecondHost(stack, tmp_path / "second")
    second.start()
    try:
        eventually(lambda: alive(stack)[OTHER], what="the second host")
        yield stack, second
    finally:
        second.kill()


def alive(stack: Stack) -> dict[str, bool]:
    return {host["name"]: host["live"] is not None for host in stack.http.get("/api/hosts").json()["hosts"]}


def ask(stack: Stack, model: str) -> Any:
    body = {"model": model, "messages": [{"role": "user", "content": "What is the capital of Japan?"}]}
    return stack.http.post("/v1/chat/completions", json={**body, "temperature": 0, "max_tokens": 16})


def test_work_goes_where_its_model_is_and_moves_when_a_host_is_lost(hosts: tuple[Stack, SecondHost]) -> None:
    stack, second = hosts
    assert ONLY_THERE in {model["id"] for model in stack.http.get("/v1/models").json()["data"]}
    for model in (MODEL, ONLY_THERE):
        answer = ask(stack, model)
        assert answer.status_code == 200, answer.text
        assert "Tokyo" in answer.json()["choices"][0]["message"]["content"]

    def served(name: str) -> set[str]:
        (live,) = [host["live"] for host in stack.http.get("/api/hosts").json()["hosts"] if host["name"] == name]
        return {engine["model"] for engine in live["engines"]}

    eventually(lambda: ONLY_THERE in served(OTHER), what="the second host's word that it serves")
    assert ONLY_THERE not in served("local")

    lines = [
        {
            "custom_id": f"row-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": MODEL, "messages": [{"role": "user", "content": f"Count from {number}."}], "max_tokens": 48},
        }
        for number in range(400)
    ]
    client = stack.openai()
    raw = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("in.jsonl", io.BytesIO(raw)), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")

    def both_work() -> bool:
        rows = stack.sql("select host, count(*) from rows_rowchunk where state = 'running' group by host")
        return {host for host, _ in rows} == {"local", OTHER}

    eventually(both_work, seconds=60, what="rows on both hosts")
    second.kill()
    ended = eventually(lambda: _ended(client, batch.id), seconds=180, what="the batch's end")
    assert (ended.status, ended.request_counts.completed, ended.request_counts.failed) == ("completed", 400, 0)
    output = client.files.content(ended.output_file_id).text.splitlines()
    assert sorted(json.loads(line)["custom_id"] for line in output) == sorted(line["custom_id"] for line in lines)

    eventually(lambda: not alive(stack)[OTHER], what="the silence of the second host")
    assert "Tokyo" in ask(stack, MODEL).json()["choices"][0]["message"]["content"], "chat goes to the host that is left"
    second.start()
    eventually(lambda: alive(stack)[OTHER], what="the second host again")
    assert "Tokyo" in ask(stack, ONLY_THERE).json()["choices"][0]["message"]["content"]


def _ended(client: Any, batch_id: str) -> Any:
    batch = client.batches.retrieve(batch_id)
    return batch if batch.status in {"completed", "failed", "expired", "cancelled"} else None
