"""Datasets at size: a million rows imported file to file, and near duplicates among a hundred thousand."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from mlxplatform.datasets.filters.near import near_duplicates

pytestmark = pytest.mark.bench

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


def test_a_million_rows_are_imported_in_constant_memory(tmp_path: Path) -> None:
    source = tmp_path / "home" / "imports" / "rows.jsonl"
    source.parent.mkdir(parents=True)
    encode = msgspec.json.encode
    with source.open("wb") as file:
        for n in range(ROWS):
            turns = [
                {"role": "user", "content": f"question {n} about something?"},
                {"role": "assistant", "content": f"answer {n}"},
            ]
            file.write(encode({"messages": turns}) + b"\n")
    environ = {"MLXPLATFORM_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin", "REDIS_URL": "unix:///nonexistent"}
    done = subprocess.run([sys.executable, "-c", _IMPORT, "rows.jsonl"], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows, seconds, peak = map(float, done.stdout.split()[-3:])
    print(f"\nimport: {rows:,.0f} rows, {rows / seconds:,.0f} rows/s, peak {peak:.0f} MiB")
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
