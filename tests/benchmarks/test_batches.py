"""Batches at size, on the tiny model: lines per second beside the bare BatchGenerator, and the orchestrator's memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mlxplatform import paths
from tests.benchmarks.table import line, measured
from tests.system.stack import MODEL, ROOT, Stack, eventually

pytestmark = [pytest.mark.bench, pytest.mark.stack, pytest.mark.timeout(3600)]

CHAT = "/v1/chat/completions"
#: Lines of the measured batches (BATCH_LINES overrides for a quick look), answers' length, lines of the bare run.
LINES = int(os.environ.get("BATCH_LINES", "10000"))
TOKENS = 16
BARE_LINES = 512


def conversation(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Tell me about number {number}."}]


def run_batch(stack: Stack, lines: int) -> tuple[float, int]:
    """Seconds from creation to completion, and tokens made."""
    body = {"model": MODEL, "max_tokens": TOKENS, "temperature": 0}
    raw = "".join(
        json.dumps({"custom_id": f"r{n}", "method": "POST", "url": CHAT, "body": {**body, "messages": conversation(n)}}) + "\n"
        for n in range(lines)
    )
    sdk = stack.openai()
    file = sdk.files.create(file=("in.jsonl", raw.encode()), purpose="batch")
    began = time.perf_counter()
    batch_id = sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h").id

    def ended() -> Any:
        time.sleep(0.5)
        batch = sdk.batches.retrieve(batch_id)
        return batch if batch.status == "completed" else None

    batch = eventually(ended, seconds=1800, what="the batch")
    assert batch.request_counts.completed == lines
    return time.perf_counter() - began, batch.usage.output_tokens


@pytest.fixture
def bare(stack: Stack) -> Iterator[Callable[[int], float]]:
    """Tokens per second of the bare generator on as many of the same prompts."""
    command = [sys.executable, "-m", "tests.benchmarks.bare_batch", str(paths.models_dir(stack.home) / MODEL)]
    child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None
    asked, told = child.stdin, child.stdout
    assert json.loads(told.readline())["ready"]

    def run(lines: int) -> float:
        asked.write(json.dumps({"messages": [conversation(n) for n in range(lines)], "max_tokens": TOKENS}) + "\n")
        asked.flush()
        answer = json.loads(told.readline())
        return float(answer["tokens"] / answer["seconds"])

    yield run
    child.kill()
    child.wait()


class Watch:
    """The largest resident size of a process while it is watched, MiB."""

    def __init__(self, pid: int):
        self.most, self._pid, self._end = 0.0, pid, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._end.wait(0.5):
            said = subprocess.run(["ps", "-o", "rss=", "-p", str(self._pid)], capture_output=True, text=True, check=False).stdout
            self.most = max(self.most, int(said or 0) / 1024)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def test_lines_per_second_beside_the_bare_generator(stack: Stack, bare: Callable[[int], float]) -> None:
    bare(32)
    run_batch(stack, 64)
    before = bare(BARE_LINES)
    seconds, tokens = run_batch(stack, LINES)
    theirs = (before + bare(BARE_LINES)) / 2
    print(f"\n{LINES:,} lines in {seconds:.1f} s: {LINES / seconds:.1f} lines/s")
    print(line("batch tokens/s over bare tokens/s", measured([tokens / seconds / theirs]), "×", "≥ 0.7"))
    assert tokens / seconds / theirs >= 0.7


def test_the_orchestrators_memory_does_not_grow_with_the_lines(stack: Stack) -> None:
    run_batch(stack, 500)
    sizes = {}
    for lines in (LINES // 10, LINES):
        with Watch(stack.pids()["cpu"]) as watch:
            run_batch(stack, lines)
        sizes[lines] = watch.most
    few, many = sizes.values()
    print("\n" + "  ".join(f"{lines:,} lines: {size:.0f} MiB" for lines, size in sizes.items()) + "   bar ±20 MiB")
    assert many - few <= 20
