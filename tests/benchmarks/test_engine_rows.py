"""The engine's own bars: starting, prompts not computed twice, chat beside rows, rows alone. Run by ``make bench``."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.serving import Conversation, Server, http
from tests.benchmarks.starting_engine import seconds_of_a_script, seconds_to_first_token
from tests.benchmarks.table import line, measured
from tests.benchmarks.test_engine import ROUNDS, bare, starter, starter_dir, stories
from tests.system.stack import eventually

__all__ = ["bare", "starter", "starter_dir"]

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]

CHAT = "/v1/chat/completions"
#: Lines of the batches, and tokens of each answer.
LINES, TOKENS = 64, 32


def test_process_start_to_first_token(starter_dir: Path) -> None:
    seconds_to_first_token(starter_dir)  # the weights' first read comes from disk
    theirs, ours = [], []
    for _ in range(ROUNDS):
        theirs.append(seconds_of_a_script(starter_dir))
        ours.append(seconds_to_first_token(starter_dir))
    found = measured(ours)
    print("\n" + line("process start → first token, starter", found, "s", "≤ 1.0"))
    print(line("the same, a script with mlx-lm", measured(theirs), "s", "–"))
    print(line("the same, ratio", measured([a / b for a, b in zip(ours, theirs, strict=True)]), "×", "–"))
    assert found.low <= 1.0


def test_the_second_turn_of_a_long_conversation(starter: Server) -> None:
    shares = []
    for pair in range(ROUNDS):
        said = f"Number {pair}. " + "The river runs past the old mill and on to the sea. " * 160
        turns: Conversation = [{"role": "user", "content": said}]
        first = _ask(starter, turns, 16)
        turns += [{"role": "assistant", "content": first["choices"][0]["message"]["content"]}]
        turns += [{"role": "user", "content": "And then?"}]
        usage = _ask(starter, turns, 4)["usage"]
        assert usage["prompt_tokens"] > 1800
        shares.append(1 - usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"])
    found = measured(shares)
    print("\n" + line("second turn: prefilled ÷ prompt tokens", found, "×", "≤ 0.05"))
    assert found.low <= 0.05


def _ask(server: Server, turns: Conversation, tokens: int) -> dict[str, Any]:
    body = {"model": server.model, "messages": turns, "max_tokens": tokens, "temperature": 0}
    answer = http.post(f"{server.base_url}{CHAT}", json=body, timeout=600)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def _submit(server: Server, conversations: list[Conversation]) -> str:
    body = {"model": server.model, "max_tokens": TOKENS, "temperature": 0}
    raw = "".join(
        json.dumps({"custom_id": f"r{n}", "method": "POST", "url": CHAT, "body": {**body, "messages": one}}) + "\n"
        for n, one in enumerate(conversations)
    )
    upload = http.post(
        f"{server.base_url}/v1/files", files={"file": ("in.jsonl", raw.encode())}, data={"purpose": "batch"}, timeout=60
    )
    order = {"input_file_id": upload.json()["id"], "endpoint": CHAT, "completion_window": "24h"}
    return str(http.post(f"{server.base_url}/v1/batches", json=order, timeout=60).json()["id"])


def _batch(server: Server, batch_id: str) -> dict[str, Any]:
    time.sleep(0.2)  # whoever looks takes some of the machine
    found: dict[str, Any] = http.get(f"{server.base_url}/v1/batches/{batch_id}", timeout=60).json()
    return found


@pytest.fixture
def rows_all_the_time(starter: Server) -> Iterator[None]:
    """A batch that is always running: the next one is sent before the last is through."""
    batch_id = _submit(starter, stories(7000, 4 * LINES))
    eventually(lambda: _batch(starter, batch_id)["request_counts"]["completed"] > 0, seconds=300, what="the first line")
    yield
    http.post(f"{starter.base_url}/v1/batches/{batch_id}/cancel", json={}, timeout=60)
    eventually(lambda: _batch(starter, batch_id)["status"] == "cancelled", seconds=120, what="the end of the batch")


def _first_tokens(server: Server, base: int, count: int) -> list[float]:
    return [server.stream(stories(base + n, 1)[0], 1).first for n in range(count)]


def test_chat_while_rows_saturate_the_engine(starter: Server, request: pytest.FixtureRequest) -> None:
    """p95 of the first token beside rows against an idle engine's, with one decode step of rows and one prefill chunk on top."""
    idle = _p95(_first_tokens(starter, 5000, 20))
    request.getfixturevalue("rows_all_the_time")
    step, chunk = _step_of_rows(starter), 0.1
    busy = _p95(_first_tokens(starter, 6000, 20))
    bar = 1.5 * idle + step + chunk
    print(f"\nfirst token p95: idle {idle:.3f} s, beside rows {busy:.3f} s; a step of rows {step:.3f} s   bar {bar:.3f} s")
    assert busy <= bar


def _step_of_rows(server: Server) -> float:
    """Seconds of a decode step while nobody chats, by what the engine says of itself."""
    steps = []
    while len(steps) < 9:
        time.sleep(0.5)
        stats = http.get(f"{server.base_url}/stats", timeout=60).json()["hosts"][0]
        if stats["rows_active"] and stats["tokens_per_s"]:
            steps.append(stats["rows_active"] / stats["tokens_per_s"])
    return statistics.median(steps)


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def test_rows_beside_the_bare_generator(starter: Server, bare: Callable[[list[Conversation]], float]) -> None:
    ours, theirs = [], []
    for pair in range(3):
        conversations = stories(8000 + pair, LINES)
        theirs.append(bare(conversations))
        began = time.perf_counter()
        batch_id = _submit(starter, conversations)
        done = eventually(
            lambda batch_id=batch_id: (b := _batch(starter, batch_id))["status"] == "completed" and b,
            seconds=600,
            what="the batch",
        )
        ours.append(done["usage"]["output_tokens"] / (time.perf_counter() - began))
    found = measured([a / b for a, b in zip(ours, theirs, strict=True)])
    print("\n" + line("rows of a batch alone ÷ bare generator", found, "×", "≥ 0.97"))
    assert found.high >= 0.97


def test_a_seeded_request_in_a_busy_batch_repeats(starter: Server) -> None:
    """Same build, same batch shape: the same neighbours are asked each time, and the seeded one waits for none of them."""
    said, firsts = set(), []
    for _ in range(3):
        threads = [threading.Thread(target=starter.stream, args=(one, 48)) for one in stories(9000, 4)]
        for thread in threads:
            thread.start()
        began = time.perf_counter()
        body = {"model": starter.model, "messages": stories(9001, 1)[0], "max_tokens": 24, "temperature": 1, "seed": 7}
        answer = http.post(f"{starter.base_url}{CHAT}", json=body, timeout=600).json()
        firsts.append(time.perf_counter() - began)
        for thread in threads:
            thread.join()
        said.add(answer["choices"][0]["message"]["content"])
    print(f"\nseeded request beside four streams: {len(said)} text(s) of 3, {statistics.median(firsts):.2f} s each")
    assert len(said) == 1
