"""The first thing a newcomer does: chat with the running platform through the official SDK and plain HTTP."""

from __future__ import annotations

import json
import socket

import httpx
import pytest

from tests.system.stack import Stack, descendants, eventually

pytestmark = pytest.mark.stack

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def test_the_sync_sdk_gets_an_answer_with_usage(stack: Stack) -> None:
    answer = stack.openai().chat.completions.create(model=stack.model, messages=QUESTION, max_tokens=20, temperature=0)
    assert "Paris" in answer.choices[0].message.content
    assert answer.usage.prompt_tokens > 0
    assert answer.usage.completion_tokens <= 20


def test_the_sync_sdk_streams_the_same_text(stack: Stack) -> None:
    client = stack.openai()
    whole = client.chat.completions.create(model=stack.model, messages=QUESTION, max_tokens=20, temperature=0)
    pieces = client.chat.completions.create(model=stack.model, messages=QUESTION, max_tokens=20, temperature=0, stream=True)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == whole.choices[0].message.content


async def test_the_async_sdk_streams(stack: Stack) -> None:
    async with stack.async_openai() as client:
        pieces = await client.chat.completions.create(model=stack.model, messages=QUESTION, max_tokens=20, stream=True)
        count = 0
        async for piece in pieces:
            count += bool(piece.choices and piece.choices[0].delta.content)
    assert count > 0


def test_the_model_list_holds_the_served_model(stack: Stack) -> None:
    assert stack.model in {model.id for model in stack.openai().models.list()}


def endless(stack: Stack, **more: object) -> dict[str, object]:
    """A request that would fill the whole context: the ending tokens are forbidden."""
    return {"model": stack.model, "messages": QUESTION, "logit_bias": {"0": -100, "2": -100}, "temperature": 1, **more}


def hang_ups(stack: Stack) -> int:
    return sum("status=499" in line and "/health" not in line for line in stack.logs("web").splitlines())


def test_a_client_that_leaves_a_stream_frees_the_engine(stack: Stack) -> None:
    before = hang_ups(stack)
    body = endless(stack, stream=True)
    with httpx.stream("POST", f"{stack.base_url}/v1/chat/completions", json=body, timeout=30) as answer:
        assert answer.status_code == 200
        next(line for line in answer.iter_lines() if '"content":"' in line)
    eventually(lambda: hang_ups(stack) == before + 1, what="the hang-up in the log")
    eventually(lambda: stack.http.get("/stats").json()["active"] == 0, seconds=5, what="a free engine")


def test_a_client_that_leaves_a_plain_request_frees_the_engine(stack: Stack) -> None:
    before = hang_ups(stack)
    with socket.create_connection(("127.0.0.1", stack.port)) as link:
        content = json.dumps(endless(stack)).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        link.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        eventually(lambda: stack.http.get("/stats").json()["active"] > 0, what="the request at work")
    eventually(lambda: hang_ups(stack) == before + 1, what="the hang-up in the log")
    eventually(lambda: stack.http.get("/stats").json()["active"] == 0, seconds=5, what="a free engine")


def test_the_web_process_maps_no_mlx(stack: Stack) -> None:
    """Not in its memory map either: a transitive import would show there."""
    pid = stack.pids()["web"]
    with open(f"/proc/{pid}/maps") as maps:
        assert not [line for line in maps if "/mlx/" in line]


def test_the_web_process_is_light(stack: Stack) -> None:
    with open(f"/proc/{stack.pids()['web']}/status") as status:
        rss = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    assert rss < 200 * 1024


def test_the_terminal_names_the_address_once(stack: Stack) -> None:
    eventually(lambda: f"MLX Platform is ready: {stack.base_url}" in stack.terminal(), what="the ready line")
    assert stack.terminal().count("MLX Platform is ready") == 1


def test_all_processes_of_the_procfile_run_below_the_supervisor(stack: Stack) -> None:
    running = set(descendants(stack.process.pid))
    pids = stack.pids()
    assert set(pids) == {"supervisor", "broker", "web", "gpu", "cpu", "scheduler"}
    assert {pid for name, pid in pids.items() if name != "supervisor"} <= running
