"""From request to engine and back: what the platform around the model costs. Run by ``make bench``."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dramatiq
import httpx
import pytest
from dramatiq.worker import Worker

from mlxplatform import paths
from mlxplatform.library import starters
from mlxplatform.library.local_models import STARTER
from tests.benchmarks.table import PAIRS, line, measured
from tests.system.stack import ROOT, Stack, clean_environment, eventually, free_port

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

#: Wake-ups and requests measured one at a time.
SAMPLES = 60
STREAMS, TOKENS = 8, 64
TOPICS = ["a lighthouse", "a train", "a garden", "a storm", "a market", "a violin", "a desert", "a harbour"]


def test_idle_enqueue_to_actor_start(broker: Any) -> None:
    from mlxplatform.broker.dramatiq_broker import enqueue, get_broker

    queue_broker = get_broker()
    started = threading.Event()
    at = [0.0]

    @dramatiq.actor(broker=queue_broker, queue_name="bench", actor_name="bench_probe")
    def probe() -> None:
        at[0] = time.perf_counter()
        started.set()

    worker = Worker(queue_broker, queues={"bench"}, worker_threads=1)
    worker.start()
    try:
        waits = []
        for _ in range(SAMPLES):
            time.sleep(0.05)  # idle is what is measured
            started.clear()
            began = time.perf_counter()
            enqueue("bench", "bench_probe")
            assert started.wait(10)
            waits.append(1000 * (at[0] - began))
    finally:
        worker.stop()
    found = measured(waits)
    print("\n" + line("idle enqueue → actor start", found, "ms", "≤ 10"))
    assert found.low <= 10


def test_http_request_to_engine_admission(stack: Stack) -> None:
    """The headers of a stream are sent at admission, so their arrival bounds it from above."""
    waits = []
    with httpx.Client(base_url=stack.base_url, timeout=60) as client:
        for number in range(SAMPLES):
            body = {
                "model": stack.model,
                "stream": True,
                "max_tokens": 1,
                "messages": [{"role": "user", "content": f"What is {number % 5} plus {number % 3}?"}],
            }
            began = time.perf_counter()
            with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                waits.append(1000 * (time.perf_counter() - began))
                answer.read()
    found = measured(waits)
    print("\n" + line("HTTP request → engine admission (headers at the client)", found, "ms", "≤ 15"))
    assert found.low <= 15


def test_the_web_process_starts_quickly_and_stays_light(home_template: Path) -> None:
    port = free_port()
    environ = clean_environment(home_template, MLXPLATFORM_PORT=str(port))
    began = time.perf_counter()
    web = subprocess.Popen([sys.executable, "-m", "mlxplatform.serve"], env=environ, cwd=ROOT)
    try:
        eventually(lambda: httpx.get(f"http://127.0.0.1:{port}/v1").status_code < 500, what="the web process")
        seconds = time.perf_counter() - began
        rss = (
            int(subprocess.run(["ps", "-o", "rss=", "-p", str(web.pid)], capture_output=True, text=True, check=True).stdout)
            / 1024
        )
    finally:
        web.terminate()
        web.wait(20)
    print("\n" + line("web process start", measured([seconds]), "s", "≤ 3"))
    print(line("web process memory", measured([rss]), "MB", "≤ 200"))
    assert seconds <= 3
    assert rss <= 200


@pytest.fixture
def starter_stack(home_template: Path, tmp_path: Path) -> Iterator[Stack]:
    home = tmp_path / "home"
    shutil.copytree(home_template, home)
    starters.ensure(home)
    with Stack(home, {"MLXPLATFORM_MODEL": STARTER}) as running:
        yield running


def conversations(pair: int) -> list[list[dict[str, str]]]:
    """Prompts nobody has asked before, so that no cache answers."""
    return [[{"role": "user", "content": f"Tell a long story, number {pair}, about {topic}."}] for topic in TOPICS]


def through_http(stack: Stack, messages: list[list[dict[str, str]]]) -> float:
    """Tokens per second of all streams together."""

    def stream(one: list[dict[str, str]]) -> int:
        body = {
            "model": STARTER,
            "messages": one,
            "max_tokens": TOKENS,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        with httpx.stream("POST", f"{stack.base_url}/v1/chat/completions", json=body, timeout=300) as answer:
            assert answer.status_code == 200, answer.read()
            lines = [text[6:] for text in answer.iter_lines() if text.startswith("data: {")]
        return json.loads(lines[-1])["usage"]["completion_tokens"]

    with ThreadPoolExecutor(STREAMS) as pool:
        began = time.perf_counter()
        tokens = sum(pool.map(stream, messages))
        return tokens / (time.perf_counter() - began)


@pytest.fixture
def bare(starter_stack: Stack) -> Iterator[Callable[[list[list[dict[str, str]]]], float]]:
    folder = paths.models_dir(starter_stack.home) / STARTER
    command = [sys.executable, "-m", "tests.benchmarks.bare_batch", str(folder)]
    child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None
    assert json.loads(child.stdout.readline())["ready"]

    def run(messages: list[list[dict[str, str]]]) -> float:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(json.dumps({"messages": messages, "max_tokens": TOKENS}) + "\n")
        child.stdin.flush()
        told = json.loads(child.stdout.readline())
        return told["tokens"] / told["seconds"]

    yield run
    child.kill()
    child.wait()


def test_eight_streams_reach_the_bare_generator(
    starter_stack: Stack, bare: Callable[[list[list[dict[str, str]]]], float]
) -> None:
    bare(conversations(1000))
    through_http(starter_stack, conversations(1001))
    ours, theirs, ratios = [], [], []
    for pair in range(PAIRS):
        theirs.append(bare(conversations(pair)))
        ours.append(through_http(starter_stack, conversations(pair)))
        ratios.append(ours[-1] / theirs[-1])
    print("\n" + line(f"bare BatchGenerator, {STREAMS} sequences", measured(theirs), "tok/s", "–"))
    print(line(f"through HTTP, {STREAMS} streams", measured(ours), "tok/s", "–"))
    found = measured(ratios)
    print(line("ratio", found, "×", "≥ 0.95"))
    assert found.high >= 0.95
