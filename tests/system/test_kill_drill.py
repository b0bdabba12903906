"""kill -9 of each process in turn while somebody chats and a dataset job runs: all heals, nothing twice, nothing lost."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.system.stack import Stack, eventually

pytestmark = [pytest.mark.stack, pytest.mark.drill, pytest.mark.timeout(900)]

#: Passages of the dataset job; each gives one row of two model calls.
PASSAGES = 80
#: Seconds a stack with everything killed once may take to finish the job on two busy cores.
FINISH = 300.0


def documents() -> str:
    return "\n\n".join(f"Passage {number} is about town number {number}, which lies by the sea." for number in range(PASSAGES))


def submit(stack: Stack) -> str:
    order = {
        "template": "rag_qa",
        "name": "drill",
        "seed": 7,
        "inputs": {"documents": documents(), "questions_per_chunk": 1, "min_chunk_chars": 40},
    }
    answer = stack.http.post("/api/dataset/submit", json=order)
    assert answer.status_code in {200, 201, 202}, answer.text
    return answer.json()["job_id"]


def job(stack: Stack, job_id: str) -> dict:
    return stack.http.get(f"/api/jobs/{job_id}").json()["job"]


def finished_calls(stack: Stack, job_id: str) -> int:
    return stack.sql("select count(*) from rows_rowcall where job = ? and state = 'done'", job_id)[0][0]


@contextmanager
def chatting(stack: Stack) -> Iterator[Counter[str]]:
    """Somebody who chats all the time, and what happened to each request: ``ok``, a status, or ``cut``."""
    outcomes: Counter[str] = Counter()
    enough = threading.Event()

    def chat() -> None:
        body = {"model": stack.model, "max_tokens": 12, "messages": [{"role": "user", "content": "Say hello."}]}
        with httpx.Client(base_url=stack.base_url, timeout=60) as client:
            while not enough.is_set():
                try:
                    answer = client.post("/v1/chat/completions", json=body)
                    outcomes["ok" if answer.status_code == 200 else str(answer.status_code)] += 1
                except httpx.HTTPError:
                    outcomes["cut"] += 1
                enough.wait(0.1)

    thread = threading.Thread(target=chat)
    thread.start()
    try:
        yield outcomes
    finally:
        enough.set()
        thread.join()


@pytest.mark.parametrize("victim", ["engine", "gpu", "cpu", "web", "scheduler", "broker"])
def test_a_killed_process_costs_no_row_and_doubles_none(fresh_stack: Stack, victim: str) -> None:
    job_id = submit(fresh_stack)
    with chatting(fresh_stack) as outcomes:
        try:
            eventually(
                lambda: outcomes["ok"] > 0 and finished_calls(fresh_stack, job_id) > 0, seconds=FINISH, what="work under way"
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{outcomes}\n{job(fresh_stack, job_id)}\n{fresh_stack.terminal()[-4000:]}") from None
        before = finished_calls(fresh_stack, job_id)
        assert before < 2 * PASSAGES, "the job was over before the kill; give it more passages"
        fresh_stack.kill_and_wait(victim)
        fresh_stack.wait_ready()
        ended = eventually(
            lambda: (found := job(fresh_stack, job_id))["state"] in {"done", "failed", "cancelled"} and found,
            seconds=FINISH,
            what="the job's end",
        )
        said_ok = outcomes["ok"]
        eventually(lambda: outcomes["ok"] > said_ok, what="a chat after the kill")
    assert ended["state"] == "done", ended
    calls = fresh_stack.sql("select key, state from rows_rowcall where job = ?", job_id)
    assert len(calls) == len({key for key, _ in calls})
    assert PASSAGES <= len(calls) <= 2 * PASSAGES
    assert {state for _, state in calls} == {"done"}
    assert set(outcomes) <= {"ok", "cut", "503", "502", "500"}, outcomes
    assert outcomes["500"] == 0, outcomes
    rows = downloaded_rows(fresh_stack, ended)
    passages = Counter(row["messages"][0]["content"].split("Passage:\n")[1] for row in rows)
    assert max(passages.values()) == 1, "a passage gave two rows"
    events = [payload for (payload,) in fresh_stack.sql("select seq from jobs_jobevent where job_id = ? order by seq", job_id)]
    assert events == list(range(events[0], events[0] + len(events)))


def downloaded_rows(stack: Stack, ended: dict) -> list[dict]:
    dataset = ended["result"]["dataset_id"]
    rows: list[dict] = []
    for name in ("train.jsonl", "valid.jsonl"):
        answer = stack.http.get(f"/api/datasets/{dataset}/files/{name}")
        assert answer.status_code == 200, answer.text
        rows += [json.loads(line) for line in answer.text.splitlines()]
    return rows
