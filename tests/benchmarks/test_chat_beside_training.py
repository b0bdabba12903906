"""The first token of a chat while a fine-tune that lends the GPU trains on the same model, beside an idle engine's."""

from __future__ import annotations

import itertools
import os
import statistics
from typing import Any

import pytest

from mlxplatform.library.local_models import STARTER
from tests.benchmarks.table import line, measured
from tests.benchmarks.test_batches import first_token_ms, starter_stack
from tests.system.stack import Stack, eventually

__all__ = ["starter_stack"]

pytestmark = [pytest.mark.bench, pytest.mark.stack, pytest.mark.timeout(3600)]

CHATS = int(os.environ.get("BATCH_CHATS", "40"))
#: Milliseconds of a prefill chunk.
CHUNK = 100
ORDER = {
    "model": STARTER,
    "iters": 100_000,
    "batch_size": 2,
    "max_seq_length": 128,
    "steps_per_report": 1,
    "steps_per_eval": 100_000,
    "suffix": "beside",
}


def test_chat_beside_a_fine_tune(starter_stack: Stack) -> None:
    http = starter_stack.http
    pairs = "\n\n".join(f"Q: What is number {n}?\nA: It is the number {n}, which comes before {n + 1}." for n in range(64))
    made: Any = http.post(
        "/api/dataset/submit", json={"template": "sft_qa_pairs", "name": "numbers", "inputs": {"pairs_text": pairs}}
    ).json()
    eventually(lambda: http.get(f"/api/jobs/{made['job_id']}").json()["job"]["state"] == "done", seconds=120, what="the dataset")

    first_token_ms(starter_stack, 0)
    alone, gaps = [], []
    for number in range(1, CHATS):
        first, between = first_token_ms(starter_stack, number)
        alone.append(first)
        gaps += between
    run: Any = http.post("/api/finetune/submit", json={**ORDER, "dataset": made["dataset_id"]}).json()
    curve = f"/api/finetune/{run['job_id']}/curve"

    def steps() -> int:
        return len(http.get(curve).json()["train"])

    eventually(lambda: steps() >= 3, seconds=600, what="the first steps of training")
    beside = []
    for number in range(CHATS, 2 * CHATS):
        before = steps()
        eventually(lambda before=before: steps() > before, seconds=120, what="a step of training between chats")
        beside.append(first_token_ms(starter_stack, number)[0])
    points = http.get(curve).json()["train"]
    http.post(f"/api/jobs/{run['job_id']}/cancel")
    step = 1000 * statistics.median(
        (after["trained_tokens"] - before["trained_tokens"]) / after["tokens_per_sec"]
        for before, after in itertools.pairwise(points)
    )
    idle, busy = (statistics.quantiles(values, n=20)[-1] for values in (alone, beside))
    bar = 1.5 * idle + statistics.median(gaps) + CHUNK + step
    print(f"\nfirst token p95: alone {idle:.0f} ms, beside a fine-tune {busy:.0f} ms; a training step {step:.0f} ms")
    print(line("first token beside a fine-tune, p95", measured([busy]), "ms", f"≤ {bar:.0f}"))
    assert busy <= bar
