"""Batches at size: lines per second beside the bare BatchGenerator, the orchestrator's memory, chat beside a batch, cancels."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mlxplatform import paths
from mlxplatform.library import starters
from mlxplatform.library.local_models import STARTER
from tests.benchmarks.table import line, measured
from tests.system.stack import MODEL, ROOT, Stack, eventually

pytestmark = [pytest.mark.bench, pytest.mark.stack, pytest.mark.timeout(3600)]

CHAT = "/v1/chat/completions"
#: Lines of the measured batches and most tokens of an answer. The numbers from the environment are for quick looks.
LINES = int(os.environ.get("BATCH_LINES", "10000"))
TOKENS = 16
STARTER_LINES, STARTER_TOKENS = int(os.environ.get("STARTER_LINES", "500")), 32
#: Lines of one run of the bare generator, which goes before and after the batch.
BARE_LINES, STARTER_BARE_LINES = 512, 96
#: Chats measured alone and beside a batch; cancels measured.
CHATS, CANCELS = int(os.environ.get("BATCH_CHATS", "40")), int(os.environ.get("BATCH_CANCELS", "10"))

Bare = Callable[[int, int], float]


def conversation(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Tell me about number {number}."}]


def start_batch(stack: Stack, model: str, lines: int, tokens: int) -> str:
    body = {"model": model, "max_tokens": tokens, "temperature": 0}
    raw = "".join(
        json.dumps({"custom_id": f"r{n}", "method": "POST", "url": CHAT, "body": {**body, "messages": conversation(n)}}) + "\n"
        for n in range(lines)
    )
    sdk = stack.openai()
    file = sdk.files.create(file=("in.jsonl", raw.encode()), purpose="batch")
    return str(sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h").id)


def wait_for(stack: Stack, batch_id: str, status: str, *, every: float = 0.5) -> Any:
    sdk = stack.openai()

    def reached() -> Any:
        time.sleep(every)
        batch = sdk.batches.retrieve(batch_id)
        return batch if batch.status == status else None

    return eventually(reached, seconds=1800, what=f"the batch {status}")


def lines_per_second(stack: Stack, model: str, lines: int, tokens: int) -> float:
    """From creation to completion, validation and the writing of the files included."""
    began = time.perf_counter()
    batch = wait_for(stack, start_batch(stack, model, lines, tokens), "completed")
    seconds = time.perf_counter() - began
    assert batch.request_counts.completed == lines
    return lines / seconds


@contextmanager
def bare_generator(stack: Stack, model: str) -> Iterator[Bare]:
    """Lines per second of the bare generator on as many of the same prompts, whose answers end where ours end."""
    command = [sys.executable, "-m", "tests.benchmarks.bare_batch", str(paths.models_dir(stack.home) / model)]
    child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None
    asked, told = child.stdin, child.stdout
    assert json.loads(told.readline())["ready"]

    def run(lines: int, tokens: int) -> float:
        messages = [conversation(n) for n in range(lines)]
        asked.write(json.dumps({"messages": messages, "max_tokens": tokens, "ends": True}) + "\n")
        asked.flush()
        return lines / float(json.loads(told.readline())["seconds"])

    try:
        yield run
    finally:
        child.kill()
        child.wait()


@pytest.fixture
def starter_stack(home_template: Path, tmp_path: Path) -> Iterator[Stack]:
    home = tmp_path / "home"
    shutil.copytree(home_template, home)
    starters.ensure(home)
    with Stack(home, {"MLXPLATFORM_MODEL": STARTER}) as running:
        yield running


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


def compare(stack: Stack, model: str, lines: int, tokens: int, bare_lines: int) -> float:
    with bare_generator(stack, model) as bare:
        bare(32, tokens)
        lines_per_second(stack, model, 64, tokens)
        before = bare(bare_lines, tokens)
        ours = lines_per_second(stack, model, lines, tokens)
        theirs = (before + bare(bare_lines, tokens)) / 2
    print(f"\n{model}: {lines:,} lines at {ours:.1f} lines/s, bare {theirs:.1f} lines/s")
    return ours / theirs


def test_tiny_lines_per_second_beside_the_bare_generator(stack: Stack) -> None:
    ratio = compare(stack, MODEL, LINES, TOKENS, BARE_LINES)
    print(line("tiny model, batch lines/s over bare lines/s", measured([ratio]), "×", "≥ 0.7"))
    assert ratio >= 0.7


def test_starter_lines_per_second_beside_the_bare_generator(starter_stack: Stack) -> None:
    ratio = compare(starter_stack, STARTER, STARTER_LINES, STARTER_TOKENS, STARTER_BARE_LINES)
    print(line("starter model, batch lines/s over bare lines/s", measured([ratio]), "×", "≥ 0.95"))
    assert ratio >= 0.95


def test_the_orchestrators_memory_does_not_grow_with_the_lines(stack: Stack) -> None:
    lines_per_second(stack, MODEL, 500, TOKENS)
    sizes = {}
    for lines in (LINES // 10, LINES):
        with Watch(stack.pids()["cpu"]) as watch:
            lines_per_second(stack, MODEL, lines, TOKENS)
        sizes[lines] = watch.most
    few, many = sizes.values()
    print("\n" + "  ".join(f"{lines:,} lines: {size:.0f} MiB" for lines, size in sizes.items()) + "   bar ±20 MiB")
    assert many - few <= 20


def first_token_ms(stack: Stack, number: int) -> tuple[float, list[float]]:
    """Milliseconds to the first token of a new chat, and between its tokens."""
    messages: Any = [{"role": "user", "content": f"In case {number}, what should one do?"}]
    began = last = time.perf_counter()
    first, gaps = 0.0, []
    for chunk in stack.openai().chat.completions.create(model=STARTER, messages=messages, max_tokens=8, stream=True):
        if chunk.choices and chunk.choices[0].delta.content:
            now = time.perf_counter()
            if first:
                gaps.append(1000 * (now - last))
            else:
                first = 1000 * (now - began)
            last = now
    return first, gaps


def test_chat_beside_a_batch(starter_stack: Stack) -> None:
    from mlxplatform import environment

    first_token_ms(starter_stack, 0)
    idle = [first_token_ms(starter_stack, n)[0] for n in range(1, CHATS)]
    batch_id = start_batch(starter_stack, STARTER, 2000, 64)
    wait_for(starter_stack, batch_id, "in_progress")
    eventually(lambda: starter_stack.openai().batches.retrieve(batch_id).request_counts.completed >= 8, seconds=600)
    busy, gaps = [], []
    for n in range(CHATS, 2 * CHATS):
        first, between = first_token_ms(starter_stack, n)
        busy.append(first)
        gaps += between
        time.sleep(0.2)  # rows take the slots back, so that each chat finds a full batch
    starter_stack.openai().batches.cancel(batch_id)
    alone, beside = (statistics.quantiles(values, n=20)[-1] for values in (idle, busy))
    step, chunk = statistics.median(gaps), float(environment.read().prefill_target_ms)
    bar = 1.5 * alone + step + chunk
    print(f"\nchat's first token, p95: alone {alone:.0f} ms, beside a batch {beside:.0f} ms; a step {step:.0f} ms")
    print(line("first token beside a batch, p95", measured([beside]), "ms", f"≤ {bar:.0f}"))
    assert beside <= bar


def test_cancelling_a_running_batch(stack: Stack) -> None:
    """Until the last of its rows was taken out of the engine, by the gpu process's own word."""
    taken = []
    for _ in range(CANCELS):
        batch_id = start_batch(stack, MODEL, 300, 200)
        eventually(lambda batch_id=batch_id: stack.openai().batches.retrieve(batch_id).request_counts.completed > 0, seconds=120)
        logged, began = len(stack.logs("gpu")), datetime.now(UTC)
        stack.openai().batches.cancel(batch_id)
        wait_for(stack, batch_id, "cancelled", every=0.1)
        ends = re.findall(r"timestamp=(\S+).*request\.cancelled", stack.logs("gpu")[logged:])
        assert ends, "no row was running"
        taken.append((datetime.fromisoformat(ends[-1]) - began).total_seconds())
    worst = statistics.quantiles(taken, n=20)[-1]
    print("\n" + line("cancel of a running batch to its last row's end, p95", measured([worst]), "s", "≤ 1 and a step"))
    assert worst <= 1.1
