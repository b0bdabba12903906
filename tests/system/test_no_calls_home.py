"""The promise that nothing calls home: every process is watched through a start, chats, a batch, a dataset and the pages."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.stack import MODEL, ROOT, Stack, eventually

pytestmark = pytest.mark.stack

WATCHER = ROOT / "tests" / "fixtures" / "watched_network"
#: Names of this machine; unix sockets are paths.
NEAR = {"127.0.0.1", "::1", "localhost", "0.0.0.0", ""}


def test_no_process_talks_to_another_machine(make_stack: Callable[..., Stack], tmp_path: Path) -> None:
    notes = tmp_path / "network"
    stack = make_stack(PYTHONPATH=f"{WATCHER}:{ROOT}", WATCHED_NETWORK=str(notes))
    messages = [{"role": "user", "content": "What is the capital of Japan?"}]
    assert stack.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 8}).status_code == 200
    assert stack.http.post("/v1/messages/count_tokens", json={"model": MODEL, "messages": messages}).status_code == 200
    for path in ("/", "/login/", "/v1/models", "/library", "/fit", "/stats", "/metrics", "/api/docs", "/api/hub/local"):
        stack.http.get(path)
    body = {"template_id": "sft_qa_pairs", "name": "d", "inputs": {"pairs_text": "Q: a\nA: b\n\nQ: c\nA: d"}}
    made = stack.http.post("/api/dataset/submit", json=body).json()
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": MODEL, "messages": messages}}
    client = stack.openai()
    file = client.files.create(file=("b.jsonl", io.BytesIO(json.dumps(line).encode())), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    eventually(lambda: client.batches.retrieve(batch.id).status == "completed", seconds=60, what="the batch")
    eventually(lambda: stack.http.get(f"/api/jobs/{made['job_id']}").json()["job"]["state"] == "done", what="the dataset")
    seen = {tuple(entry.split(" ", 1)) for entry in notes.read_text().splitlines()}
    assert ("socket.connect", "127.0.0.1") in seen or any(name.startswith("/") for _, name in seen), (
        "the watcher saw nothing at all"
    )
    assert {name for _, name in seen if name not in NEAR and not name.startswith("/")} == set()
