"""A dataset run survives the death of every process it needs: no row twice, none missing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import redis

from mlxplatform.paths import broker_socket
from tests.system.stack import Stack, eventually

pytestmark = pytest.mark.stack

ROWS = 200


def submit(stack: Stack, template: str, inputs: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = stack.http.post("/api/dataset/submit", json={"template": template, "inputs": inputs, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def job(stack: Stack, job_id: str) -> dict[str, Any]:
    return stack.http.get(f"/api/jobs/{job_id}").json()["job"]


def ended(stack: Stack, job_id: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = job(stack, job_id)
        return found if found["state"] in {"done", "failed", "cancelled"} else None

    return eventually(look, seconds=180, what="the end of the job")


def wait_for_calls(stack: Stack, job_id: str, number: int) -> None:
    def enough() -> bool:
        done = stack.sql("SELECT count(*) FROM rows_rowcall WHERE job = ? AND state = 'done'", job_id)[0][0]
        return int(done) >= number

    eventually(enough, seconds=120, what=f"{number} finished calls")


def test_two_hundred_rows_survive_every_kill(fresh_stack: Stack) -> None:
    stack = fresh_stack
    passages = "\n\n".join(f"Fact {n}: the capital of place {n} is town {n}, which has {n} houses." for n in range(ROWS))
    inputs = {"documents": passages, "min_chunk_chars": 40, "questions_per_chunk": 1}
    order = submit(stack, "rag_qa", inputs, seed=7, filters={"distinct": False, "refusals": False})
    for number, victim in enumerate(("gpu", "cpu", "engine"), 1):
        wait_for_calls(stack, order["job_id"], 30 * number)
        stack.kill_and_wait(victim)
    redis.Redis(unix_socket_path=str(broker_socket(stack.home))).flushall()
    end = ended(stack, order["job_id"])
    assert end["state"] == "done", end
    dataset = order["dataset_id"]
    rows = stack.sql(
        "SELECT r.source, r.state, r.reason FROM datasets_datasetrow r JOIN datasets_datasetversion v ON v.id = r.version_id "
        "WHERE v.dataset_id = ?",
        dataset,
    )
    assert Counter(Counter(source for source, _, _ in rows).values()) == {1: ROWS}
    accepted = [row for row in rows if row[1] == "accepted"]
    assert {reason for _, state, reason in rows if state == "dropped"} <= {
        "empty_question",
        "empty_answer",
        "no_question",
        "shape",
    }
    files = {name: stack.http.get(f"/api/datasets/{dataset}/files/{name}").text for name in ("train.jsonl", "valid.jsonl")}
    lines = [line for text in files.values() for line in text.splitlines()]
    assert len(lines) == len(accepted) == end["result"]["rows"]
    keys = stack.sql("SELECT key FROM rows_rowcall WHERE job = ?", order["job_id"])
    assert len(keys) == len(set(keys))
