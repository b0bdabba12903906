"""Batches while processes die: every line answered once, whatever is killed and whenever."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from typing import Any

import httpx
import openai
import pytest

from tests.system.stack import Stack, eventually

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

CHAT = "/v1/chat/completions"


def start(stack: Stack, lines: int, tokens: int = 12) -> str:
    requests = [
        {
            "custom_id": f"r{n}",
            "method": "POST",
            "url": CHAT,
            "body": {"model": "tiny", "messages": [{"role": "user", "content": f"Say {n}"}], "max_tokens": tokens},
        }
        for n in range(lines)
    ]
    sdk = stack.openai()
    raw = "".join(json.dumps(one) + "\n" for one in requests).encode()
    file = sdk.files.create(file=("in.jsonl", raw), purpose="batch")
    return str(sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h").id)


def look(stack: Stack, batch_id: str) -> Any:
    """The batch, or None while nobody answers."""
    time.sleep(0.2)
    try:
        return stack.openai().batches.retrieve(batch_id)
    except (openai.APIConnectionError, openai.InternalServerError, httpx.HTTPError):
        return None


def finished(stack: Stack, batch_id: str) -> int:
    batch = look(stack, batch_id)
    return batch.request_counts.completed + batch.request_counts.failed if batch else 0


def assert_whole(stack: Stack, batch_id: str, lines: int) -> None:
    def ended() -> Any:
        batch = look(stack, batch_id)
        return batch if batch and batch.status == "completed" else None

    batch = eventually(ended, seconds=300, what="the end of the batch")
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (lines, lines, 0)
    raw = stack.openai().files.content(batch.output_file_id).content
    ids = Counter(json.loads(one)["custom_id"] for one in raw.splitlines())
    assert ids == Counter({f"r{n}": 1 for n in range(lines)})
    assert stack.sql("select count(*) from batches_batchline") == [(0,)]


def test_a_batch_survives_each_process_dying_once(fresh_stack: Stack) -> None:
    batch_id = start(fresh_stack, 240)
    for part, name in enumerate(("cpu", "engine", "gpu", "scheduler", "web"), 1):
        eventually(
            lambda part=part: finished(fresh_stack, batch_id) >= part * 20, seconds=120, what=f"progress before killing {name}"
        )
        fresh_stack.kill_and_wait(name)
    assert_whole(fresh_stack, batch_id, 240)


@pytest.mark.drill
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_batch_survives_random_deaths_and_a_wiped_broker(fresh_stack: Stack, seed: int) -> None:
    chance = random.Random(seed)
    batch_id = start(fresh_stack, 600)
    for _ in range(8):
        time.sleep(chance.uniform(0.2, 4))
        name = chance.choice(["cpu", "gpu", "engine", "web", "scheduler", "broker", "flush"])
        if name == "flush":
            fresh_stack.sql("select 1")
            import redis

            from mlxplatform.paths import broker_socket

            redis.Redis(unix_socket_path=str(broker_socket(fresh_stack.home))).flushall()
        else:
            fresh_stack.kill_and_wait(name)
    assert_whole(fresh_stack, batch_id, 600)
