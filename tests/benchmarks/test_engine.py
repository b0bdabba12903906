"""The engine against the bare generator and against ``mlx_lm.server``. Run by ``make bench``.

Interleaved pairs on the same machine, model, prompts and threads; see docs/reference/engine.md for what was
measured where. ``BENCH_PAIRS`` sets the number of pairs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlxplatform import paths
from mlxplatform.library import starters
from mlxplatform.library.local_models import STARTER
from tests.benchmarks.serving import Conversation, Server, mlx_lm_server, quantized
from tests.benchmarks.table import PAIRS, line, measured
from tests.system.stack import MODEL, ROOT, Stack

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]

ROUNDS = int(os.environ.get("BENCH_PAIRS", PAIRS))
TOKENS = 64
TOPICS = ("a lighthouse", "a train", "a garden", "a storm", "a market", "a violin", "a desert", "a harbour")


def stories(pair: int, count: int) -> list[Conversation]:
    """Prompts nobody asked before, so that no cache answers."""
    return [
        [{"role": "user", "content": f"Tell a long story, number {pair}.{n}, about {TOPICS[n % len(TOPICS)]}."}]
        for n in range(count)
    ]


def compare(what: str, bar: float, ours: Callable[[int], float], theirs: Callable[[int], float], *, below: bool = False) -> None:
    """Print both sides and their ratio; the bar is met when the interval reaches it."""
    own, other = [], []
    for pair in range(ROUNDS):
        other.append(theirs(pair))
        own.append(ours(pair))
    ratio = measured([a / b for a, b in zip(own, other, strict=True)])
    print("\n" + line(f"{what}: ours", measured(own), "", "–"))
    print(line(f"{what}: theirs", measured(other), "", "–"))
    print(line(f"{what}: ratio", ratio, "×", f"{'≤' if below else '≥'} {bar}"))
    assert ratio.low <= bar if below else ratio.high >= bar


@pytest.fixture(scope="module")
def starter(home_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("bench") / "home"
    shutil.copytree(home_template, home)
    starters.ensure(home)
    with Stack(home, {"MLXPLATFORM_MODEL": STARTER}) as running:
        server = Server(running.base_url, STARTER)
        server.stream(stories(-1, 1)[0], 4)
        yield server


@pytest.fixture(scope="module")
def starter_dir(starter: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("models")
    starters.ensure(home)
    return paths.models_dir(home) / STARTER


@pytest.fixture(scope="module")
def bare(starter_dir: Path) -> Iterator[Callable[[list[Conversation]], float]]:
    command = [sys.executable, "-m", "tests.benchmarks.bare_batch", str(starter_dir)]
    child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    asked, told = child.stdin, child.stdout
    assert json.loads(told.readline())["ready"]

    def run(messages: list[Conversation]) -> float:
        asked.write(json.dumps({"messages": messages, "max_tokens": TOKENS}) + "\n")
        asked.flush()
        answer = json.loads(told.readline())
        return float(answer["tokens"] / answer["seconds"])

    yield run
    child.kill()
    child.wait()


@pytest.mark.parametrize(("streams", "bar"), [(1, 0.97), (8, 0.97), (16, 0.95)])
def test_served_over_bare(starter: Server, bare: Callable[[list[Conversation]], float], streams: int, bar: float) -> None:
    compare(
        f"served ÷ bare generator, {streams} streams, tok/s",
        bar,
        lambda pair: starter.together(stories(pair, streams), TOKENS),
        lambda pair: bare(stories(pair, streams)),
    )


@pytest.mark.parametrize(("streams", "bar"), [(1, 3.0), (4, 7.0)])
def test_served_over_mlx_lm_as_installed(starter: Server, starter_dir: Path, tmp_path: Path, streams: int, bar: float) -> None:
    with mlx_lm_server(quantized(starter_dir, tmp_path / "4bit"), same_blas=False) as theirs:
        compare(
            f"served ÷ mlx_lm.server as installed, {streams} streams, tok/s",
            bar,
            lambda pair: starter.together(stories(pair, streams), TOKENS),
            lambda pair: theirs.together(stories(pair, streams), TOKENS // 2),
        )


@pytest.mark.parametrize(("streams", "bar"), [(1, 1.0), (8, 0.97), (16, 0.97)])
def test_served_over_mlx_lm_on_the_same_weights(starter: Server, starter_dir: Path, streams: int, bar: float) -> None:
    with mlx_lm_server(starter_dir, same_blas=True) as theirs:
        compare(
            f"served ÷ mlx_lm.server, same weights and BLAS, {streams} streams, tok/s",
            bar,
            lambda pair: starter.together(stories(pair, streams), TOKENS),
            lambda pair: theirs.together(stories(pair, streams), TOKENS),
        )


def test_late_short_request_on_the_starter(starter: Server, starter_dir: Path) -> None:
    late: Conversation = [{"role": "user", "content": "Hi"}]
    with mlx_lm_server(starter_dir, same_blas=True) as theirs:

        def first(server: Server) -> Callable[[int], float]:
            return lambda pair: server.first_while_busy(stories(pair, 4), late, tokens=TOKENS, settle=4)

        compare("first token of a late request, starter, s", 0.7, first(starter), first(theirs), below=True)


def test_short_request_beside_a_long_prefill(starter: Server, starter_dir: Path) -> None:
    late: Conversation = [{"role": "user", "content": "Hi"}]

    def long(pair: int) -> list[Conversation]:
        return [[{"role": "user", "content": f"Read this, number {pair}: " + "the river runs past the old mill and on. " * 180}]]

    with mlx_lm_server(starter_dir, same_blas=True) as theirs:

        def first(server: Server) -> Callable[[int], float]:
            return lambda pair: server.first_while_busy(long(pair), late, tokens=2, settle=0.5)

        compare("first token beside a 2,000-token prefill, s", 0.3, first(starter), first(theirs), below=True)


def test_short_requests_on_the_tiny_model(stack: Stack) -> None:
    ours = Server(stack.base_url, MODEL)
    with mlx_lm_server(paths.models_dir(stack.home) / MODEL, same_blas=True) as theirs:
        compare(
            "short requests, tiny model, 16 streams, tok/s",
            1.5,
            lambda pair: ours.together(stories(pair, 16), 32),
            lambda pair: theirs.together(stories(pair, 16), 32),
        )


def test_late_short_request_on_the_tiny_model(stack: Stack) -> None:
    late: Conversation = [{"role": "user", "content": "Say hello."}]
    busy: list[Conversation] = [[{"role": "user", "content": f"Count to {n}."}] for n in range(4)]
    with mlx_lm_server(paths.models_dir(stack.home) / MODEL, same_blas=True) as theirs:

        def first(server: Server) -> Callable[[int], float]:
            endless = Server(server.base_url, server.model, endless=True)
            return lambda pair: endless.first_while_busy(busy, late, tokens=1200, settle=0.6)

        compare("first token of a late request, tiny, s", 0.1, first(Server(stack.base_url, MODEL)), first(theirs), below=True)
