"""The terminal commands against the running platform."""

from __future__ import annotations

import io
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from mlxplatform.console import following, terminal
from tests.fixtures.memory_notes import CORPUS, jsonl
from tests.system.stack import Stack, eventually

pytestmark = pytest.mark.stack

PROPOSE = """
from mlxplatform.memory import changes
from mlxplatform.memory.models import Change, Vault
from mlxplatform.memory.wiki.edits import CreatePage, Draft, Sentence, Source
vault = Vault.objects.get(name="terminal")
source = Source("aaaaaaaa", "2026-01-03", "jsonl", 1, 2, "Descaling")
for title in ("Lelit Anna", "Tigerella"):
    said = [Sentence(f"The {title} wants care every two months.", [source])]
    edit = CreatePage(title, "thing", [], said, [Draft("Care", said)])
    change = changes.order(vault, title.replace(" ", "_"), "create", edit, "", f"New page {title}")
    Change.objects.filter(pk=change.pk).update(state="proposed", confidence=0.9)
"""

Manage = Callable[..., str]


@pytest.fixture
def manage(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Manage:
    """Runs a command that only asks the platform, in this process; the answer is what it printed."""
    monkeypatch.setattr(terminal, "address", lambda: stack.base_url)

    def run(*words: str, **options: Any) -> str:
        out = io.StringIO()
        call_command(*words, stdout=out, stderr=out, **options)
        return out.getvalue()

    return run


def pairs(stack: Stack, name: str) -> dict[str, str]:
    body = {"template_id": "sft_qa_pairs", "name": name, "inputs": {"pairs_text": "\n\n".join(f"Q: {n}\nA: {n}" for n in "abc")}}
    answer: dict[str, str] = stack.http.post("/api/dataset/submit", json=body).json()
    return answer


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


def test_jobs_are_listed_followed_and_refused_in_words(stack: Stack, manage: Manage) -> None:
    job_id = pairs(stack, "listed")["job_id"]
    assert "done" in manage("jobs", "tail", job_id)
    assert job_id in stack.manage("jobs", "list", "--kind", "dataset").stdout
    late = stack.manage("jobs", "cancel", job_id)
    assert late.returncode != 0
    assert "already done" in late.stderr
    with pytest.raises(CommandError, match="not found"):
        manage("jobs", "tail", "job_none")


def test_a_model_is_quantized_and_refusals_name_the_field(stack: Stack, manage: Manage) -> None:
    for words, named in (
        (("none",), "none"),
        ((stack.model, "--bits", "7"), "bits"),
        ((stack.model, "--bits", "many"), "whole number"),
        ((stack.model, "--candidate-bits", "4", "x"), "candidate_bits"),
    ):
        with pytest.raises(CommandError, match=named):
            manage("quantize", *words)
    said = manage("quantize", stack.model, "--output", "from-terminal", "--bits", "8", "--no-report")
    assert "from-terminal" in said
    assert "bits per weight" in said
    question = {"model": "from-terminal", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    answer = stack.http.post("/v1/chat/completions", json=question)
    assert answer.json()["model"] == "from-terminal"  # at once, and not the model that answers for unknown names

    def gone() -> bool:
        stack.http.post("/api/models/from-terminal/unload")  # refused while its last answer still counts as running
        return stack.http.delete("/api/library/from-terminal").status_code == 200

    eventually(gone, what="the model gone")


def test_a_fine_tune_is_ordered_left_alone_cancelled_and_told_as_failed(stack: Stack, manage: Manage) -> None:
    dataset = pairs(stack, "to learn")
    manage("jobs", "tail", dataset["job_id"])
    said = manage("finetune", stack.model, "--dataset", dataset["dataset_id"], "--iters", "100000", "--detach")
    (job,) = re.findall(r"job_\w+", said)
    assert "done" not in said
    assert stack.http.post(f"/api/jobs/{job}/cancel").status_code == 200
    with pytest.raises(CommandError, match="cancelled"):
        manage("jobs", "tail", job)


@pytest.mark.parametrize("cancels", [False, True])
def test_an_interrupt_leaves_the_job_or_cancels_it_if_told_to(stack: Stack, cancels: bool) -> None:
    queue = next(one["name"] for one in stack.http.get("/api/queues").json()["queues"] if one["name"].startswith("gpujobs"))
    stack.http.post(f"/api/queues/{queue}/pause").raise_for_status()
    try:
        words = ("quantize", stack.model, "--output", f"left-{cancels}", *(["--cancel-on-interrupt"] if cancels else []))
        running = stack.start_managing(*words)
        assert running.stdout is not None
        job = running.stdout.readline().split()[0]
        assert "queued" in running.stdout.readline()
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
        assert running.returncode == following.LEFT, err
        assert f"manage.py jobs tail {job}" in out
        state = stack.http.get(f"/api/jobs/{job}").json()["job"]["state"]
        assert state == ("cancelled" if cancels else "queued")
        stack.http.post(f"/api/jobs/{job}/cancel")
    finally:
        stack.http.post(f"/api/queues/{queue}/resume").raise_for_status()


def test_the_memory_reads_searches_and_is_reviewed(
    stack: Stack, manage: Manage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manage("memory", "init")  # the one that pages show first
    here = ("--vault", "terminal")
    assert "is ready" in manage("memory", "init", *here)
    assert "already there" in manage("memory", "init", *here)
    export = tmp_path / "chats.jsonl"
    export.write_bytes(jsonl(CORPUS))
    before = stack.http.get("/v1/files").json()["data"]
    assert f"added {len(CORPUS)}" in manage("memory", "ingest", str(export), "--format", "jsonl", *here)
    assert stack.http.get("/v1/files").json()["data"] == before
    assert f"{len(CORPUS)} wait" in manage("memory", "run", "--dry", *here)
    with pytest.raises(CommandError, match="No such file"):
        manage("memory", "ingest", str(tmp_path / "none"), "--format", "jsonl", *here)
    with pytest.raises(CommandError, match="no such vault"):
        manage("memory", "runs", "--vault", "none")

    assert stack.manage("shell", "-c", PROPOSE).returncode == 0
    assert "New page Tigerella" in manage("memory", "review", "--list", *here)
    monkeypatch.setattr("sys.stdin", io.StringIO("a\nr\n"))
    said = manage("memory", "review", *here)
    assert "+# Lelit Anna" in said
    assert said.index("accepted") < said.index("rejected") < said.index("Nothing more waits.")
    assert "Lelit Anna" in manage("memory", "search", "care", *here)
    assert "nothing found" in manage("memory", "search", "submarine", *here)


def test_a_run_shows_its_stages(stack: Stack, manage: Manage) -> None:
    manage("memory", "init")
    said = manage("memory", "run", "--stages", "link")
    assert "link: linking pages" in said
    assert "nothing was proposed" in said
    assert "done" in manage("memory", "runs")


def test_commands_need_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "address", lambda: "http://127.0.0.1:9")
    for words in (("jobs", "tail", "job_x"), ("quantize", "tiny"), ("memory", "runs")):
        with pytest.raises(CommandError, match="make run"):
            call_command(*words)
