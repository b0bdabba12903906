"""Datasets at size: a million rows imported file to file, near duplicates among a hundred thousand, and how full
templates keep the engine's batch."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mlxplatform.datasets.filters.near import near_duplicates
from mlxplatform.inference.contract import decode_request
from tests.benchmarks.table import PAIRS, line, measured
from tests.system.stack import MODEL, Stack, eventually

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]

ROWS = 1_000_000
MIN_ROWS_PER_S, MAX_RSS_MB = 50_000, 200
NEAR_ROWS, MAX_NEAR_S = 100_000, 60

#: Runs one import in a process of its own, so that its peak memory is its own.
_IMPORT = """
import os, resource, sys, time
os.environ["DJANGO_SETTINGS_MODULE"] = "mlxplatform.settings"
import django; django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from mlxplatform.datasets.imports import order
from mlxplatform.datasets.models import DatasetVersion
from mlxplatform.jobs import moves
from mlxplatform.jobs.context import JobContext
from mlxplatform.datasets.imports.run import run
job, version = order.submit(order.check({"path": sys.argv[1]}, "default"), project="default")
context = JobContext(moves.claim("cpu", "bench"))
started = time.monotonic()
result = run(context)
seconds = time.monotonic() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 1024 * 1024)
print(result["rows"], seconds, peak)
"""


@pytest.mark.parametrize(
    "more", [{}, {"id": "row", "source": "web", "score": 0.5, "tags": ["a", "b"]}], ids=["plain", "more columns"]
)
def test_a_million_rows_are_imported_in_constant_memory(tmp_path: Path, more: dict[str, Any]) -> None:
    source = tmp_path / "home" / "imports" / "rows.jsonl"
    source.parent.mkdir(parents=True)
    encode = msgspec.json.encode
    with source.open("wb") as file:
        for n in range(ROWS):
            turns = [
                {"role": "user", "content": f"question {n} about something?"},
                {"role": "assistant", "content": f"answer {n}"},
            ]
            file.write(encode({**more, "messages": turns}) + b"\n")
    environ = {"MLXPLATFORM_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin", "REDIS_URL": "unix:///nonexistent"}
    done = subprocess.run([sys.executable, "-c", _IMPORT, "rows.jsonl"], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows, seconds, peak = map(float, done.stdout.split()[-3:])
    print(f"\nimport, {len(more)} more columns: {rows:,.0f} rows, {rows / seconds:,.0f} rows/s, peak {peak:.0f} MiB")
    assert rows == ROWS and rows / seconds >= MIN_ROWS_PER_S and peak <= MAX_RSS_MB


def test_near_duplicates_among_a_hundred_thousand_rows() -> None:
    words = [f"w{n}" for n in range(5_000)]
    texts = (" ".join(words[(n * 7 + k * (n % 97 + 1)) % 5_000] for k in range(40)) for n in range(NEAR_ROWS))
    rows = [(n, {"text": text}) for n, text in enumerate(texts)]
    copies = {NEAR_ROWS + n: {"text": rows[n * 10][1]["text"] + " and more"} for n in range(100)}
    started = time.monotonic()
    found = {row_id for row_id, _, _ in near_duplicates([*rows, *copies.items()], 0.8)}
    seconds = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"\nnear duplicates: {NEAR_ROWS:,} rows in {seconds:.1f} s ({peak} rss)")
    assert len(found & set(copies)) >= 95
    assert seconds <= MAX_NEAR_S


# Templates beside a plain batch of the very calls they made -------------------------------------------------------------

CHAT = "/v1/chat/completions"
#: Sources of a measured run (DATASET_SOURCES overrides for a quick look).
SOURCES = int(os.environ.get("DATASET_SOURCES", "200"))
MIN_FILL = 0.9
FACTS = "\n\n".join(f"Fact {n}: the capital of place {n} is town {n}, which has {n} houses." for n in range(SOURCES))
TEMPLATES: dict[str, dict[str, Any]] = {
    "column_prompts": {
        "rows": "\n".join(json.dumps({"n": n}) for n in range(SOURCES)),
        "prompt_template": "Tell me about number {{ n }}.",
    },
    "rag_qa": {"documents": FACTS, "min_chunk_chars": 40, "questions_per_chunk": 1},
}


def run_template(stack: Stack, name: str, seed: int) -> tuple[float, int, list[dict[str, Any]]]:
    """Seconds, tokens written, and the calls made, as bodies of a batch."""
    order = {"template": name, "inputs": TEMPLATES[name], "seed": seed, "filters": {"distinct": False, "refusals": False}}
    began = time.perf_counter()
    job = stack.http.post("/api/dataset/submit", json=order).json()["job_id"]

    def ended() -> Any:
        found = stack.http.get(f"/api/jobs/{job}").json()["job"]
        return found if found["state"] in {"done", "failed"} else None

    assert eventually(ended, seconds=600, what="the dataset")["state"] == "done"
    seconds = time.perf_counter() - began
    calls = [decode_request(row[0]) for row in stack.sql("SELECT request FROM rows_rowcall WHERE job = ? ORDER BY id", job)]
    tokens = stack.sql("SELECT sum(completion_tokens) FROM rows_rowcall WHERE job = ?", job)[0][0]
    bodies = [
        {
            "model": MODEL,
            "messages": [{"role": message.role, "content": message.content} for message in call.messages],
            "max_tokens": call.max_tokens,
            "temperature": call.sampling.temperature,
            "seed": call.sampling.seed,
        }
        for call in calls
    ]
    return seconds, int(tokens), bodies


def run_plain(stack: Stack, bodies: list[dict[str, Any]]) -> tuple[float, int]:
    """Seconds and tokens of a plain batch of these bodies."""
    raw = "".join(
        json.dumps({"custom_id": f"r{n}", "method": "POST", "url": CHAT, "body": body}) + "\n" for n, body in enumerate(bodies)
    )
    sdk = stack.openai()
    file = sdk.files.create(file=("in.jsonl", raw.encode()), purpose="batch")
    began = time.perf_counter()
    batch_id = sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h").id

    def ended() -> Any:
        batch = sdk.batches.retrieve(batch_id)
        return batch if batch.status == "completed" else None

    batch = eventually(ended, seconds=600, what="the batch")
    assert batch.request_counts.completed == len(bodies)
    return time.perf_counter() - began, batch.usage.output_tokens


@pytest.mark.stack
@pytest.mark.parametrize("name", list(TEMPLATES))
def test_a_template_fills_the_batch_as_a_plain_batch_does(stack: Stack, name: str) -> None:
    run_template(stack, name, 0)
    ratios = []
    for pair in range(PAIRS):
        seconds, tokens, bodies = run_template(stack, name, pair + 1)
        plain_seconds, plain_tokens = run_plain(stack, bodies)
        ratios.append((tokens / seconds) / (plain_tokens / plain_seconds))
        plain = plain_tokens / plain_seconds
        print(f"\n{name}: {tokens / seconds:.0f} tokens/s, plain batch of its {len(bodies)} calls {plain:.0f}")
    found = measured(ratios)
    print(line(f"{name}: tokens/s over a plain batch's", found, "×", f"≥ {MIN_FILL}"))
    assert found.high >= MIN_FILL
