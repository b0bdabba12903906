"""The terminal commands against the running platform."""

from __future__ import annotations

import pytest

from tests.system.stack import Stack

pytestmark = pytest.mark.stack


def test_a_question_is_answered_in_the_terminal(stack: Stack) -> None:
    done = stack.manage("chat", "--temperature", "0", "--max-tokens", "16", "What is the capital of Japan?")
    assert "Tokyo" in done.stdout
    assert done.returncode == 0


def test_a_conversation_goes_on_until_an_empty_line(stack: Stack) -> None:
    said = "What is the capital of Japan?\nWhat is the capital of Peru?\n\nnever asked\n"
    done = stack.manage("chat", "--temperature", "0", "--max-tokens", "16", stdin=said)
    assert "Tokyo" in done.stdout
    assert done.stdout.count("\n") == 2


def test_a_refusal_is_one_sentence(stack: Stack) -> None:
    done = stack.manage("chat", "--temperature", "9", "hi")
    assert done.returncode != 0
    assert "temperature" in done.stderr
    assert "Traceback" not in done.stderr


def test_jobs_are_listed_followed_and_refused_in_words(stack: Stack) -> None:
    made = stack.http.post(
        "/api/dataset/submit", json={"template_id": "sft_qa_pairs", "inputs": {"pairs_text": "Q: a\nA: b\n\nQ: c\nA: d"}}
    )
    job_id = made.json()["job_id"]
    assert "done" in stack.manage("jobs", "tail", job_id).stdout
    assert job_id in stack.manage("jobs", "list", "--kind", "dataset").stdout
    late = stack.manage("jobs", "cancel", job_id)
    assert late.returncode != 0
    assert "already done" in late.stderr
    assert "not found" in stack.manage("jobs", "tail", "job_none").stderr
