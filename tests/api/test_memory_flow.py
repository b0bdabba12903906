"""The memory on the running platform: real jobs, real rows, a real model that talks nonsense."""

import asyncio
import os
import subprocess
import sys

import pytest
from mcp import Client, StdioServerParameters

from tests.api.sse import frames
from tests.fixtures.memory_notes import CORPUS, jsonl
from tests.system.stack import eventually

pytestmark = pytest.mark.stack


def ended(stack, job_id):
    def look():
        job = stack.http.get(f"/api/jobs/{job_id}").json()["job"]
        return job if job["state"] in {"done", "failed", "cancelled"} else None

    return eventually(look, seconds=120, what=f"the end of {job_id}")


def run(stack, path, body):
    answer = stack.http.post(path, json=body)
    assert answer.status_code == 202, answer.text
    job = ended(stack, answer.json()["job"]["id"])
    assert job["state"] == "done", job["error"]
    return job["result"]


def test_a_night_on_the_running_platform(fresh_stack):
    stack = fresh_stack
    assert stack.http.post("/api/memory/init", json={"policy": "auto"}).json()["ok"]
    root = stack.home / "memory" / "wiki"
    assert run(stack, "/api/memory/import", {"format": "jsonl", "content": jsonl(CORPUS).decode()})["added"] == 3

    first = run(stack, "/v1/memory/synthesize", {})
    assert first["model_calls"] >= 3
    head = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    again = run(stack, "/v1/memory/synthesize", {})
    assert again["model_calls"] == 0
    assert subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout == head

    look_things_up(stack, root)
    asyncio.run(as_an_mcp_client(f"{stack.base_url}/mcp/memory"))
    environment = {**os.environ, "MLXPLATFORM_HOME": str(stack.home)}
    command = StdioServerParameters(command=sys.executable, args=["manage.py", "memory_mcp"], env=environment, cwd=os.getcwd())
    asyncio.run(as_an_mcp_client(command))


async def as_an_mcp_client(server):
    """The protocol's own client library, over HTTP or over standard input and output."""
    async with Client(server) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} >= {"memory_resolve", "memory_section", "memory_search"}
        found = await client.call_tool("memory_read", {"name": "boat"})
        assert not found.is_error and "Swallow" in found.structured_content["lead"]
        missing = await client.call_tool("memory_read", {"name": "ship"})
        assert missing.is_error and "no such page" in missing.content[0].text


def look_things_up(stack, root):
    """A chat that may use the memory: the call a model makes is run here, and the client sees one answer."""
    (root / "articles" / "Boat.md").write_text("# Boat\n\nThe boat is called Swallow.\n")
    assert run(stack, "/v1/memory/synthesize", {})["model_calls"] == 0
    body = {"messages": [{"role": "user", "content": "boat?"}], "max_tokens": 60, "temperature": 0, "memory": True}
    forced = {**body, "tool_choice": {"type": "function", "function": {"name": "memory_list"}}}
    answer = stack.http.post("/v1/chat/completions", json=forced)
    assert answer.status_code == 200, answer.text
    choice, usage = answer.json()["choices"][0], answer.json()["usage"]
    assert "tool_calls" not in choice["message"] and choice["finish_reason"] in {"stop", "length"}
    once = stack.http.post("/v1/chat/completions", json=body, headers={"x-mlxplatform-memory": "wiki"}).json()["usage"]
    assert usage["prompt_tokens"] > 2 * once["prompt_tokens"] > 0, "the second round carries the page list"
    streamed = stack.http.post("/v1/chat/completions", json={**forced, "stream": True}).text
    assert "tool_calls" not in streamed.replace('"finish_reason":"tool_calls"', "!") and streamed.endswith("data: [DONE]\n\n")
    refused = stack.http.post("/v1/chat/completions", json={**body, "memory": "none"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (404, "memory")
    look_things_up_by_response(stack, once["prompt_tokens"])
    look_things_up_by_message(stack, once["prompt_tokens"])


def look_things_up_by_response(stack, once):
    """The same in the Responses API, whose streams are kept: at their end, since no single request is the whole of one."""
    body = {"input": "boat?", "max_output_tokens": 60, "temperature": 0, "memory": True}
    body["tool_choice"] = {"type": "function", "name": "memory_list"}
    whole = stack.http.post("/v1/responses", json=body)
    assert whole.status_code == 200, whole.text
    whole = whole.json()
    assert whole["usage"]["input_tokens"] > 2 * once and whole["tools"] == []
    assert {item["type"] for item in whole["output"]} <= {"message", "reasoning"}
    events = frames(stack.http.post("/v1/responses", json={**body, "stream": True}).text)
    numbers = [event.json["sequence_number"] for event in events]
    final = events[-1].json["response"]
    assert numbers == sorted(set(numbers)) and final["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    assert not [event for event in events if "function_call" in event.event]
    assert stack.http.get(f"/v1/responses/{final['id']}").json()["output"] == final["output"]
    again = frames(stack.http.get(f"/v1/responses/{final['id']}?stream=true").text)
    assert again[-1].json["response"]["output"] == final["output"]
    follow = {"input": "and the dog?", "previous_response_id": final["id"], "max_output_tokens": 8, "memory": "wiki"}
    assert stack.http.post("/v1/responses", json=follow).json()["usage"]["input_tokens"] > once
    refused = stack.http.post("/v1/responses", json={**body, "background": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "memory")


def look_things_up_by_message(stack, once):
    """The same in the Messages API, opted in by the header."""
    body = {"messages": [{"role": "user", "content": "boat?"}], "max_tokens": 60, "temperature": 0}
    body["tool_choice"] = {"type": "tool", "name": "memory_list"}
    memory = {"x-mlxplatform-memory": "true"}
    whole = stack.http.post("/v1/messages", json=body, headers=memory)
    assert whole.status_code == 200, whole.text
    whole = whole.json()
    assert whole["usage"]["input_tokens"] > 2 * once and "tool_use" not in {block["type"] for block in whole["content"]}
    assert whole["stop_reason"] in {"end_turn", "max_tokens"}
    streamed = frames(stack.http.post("/v1/messages", json={**body, "stream": True}, headers=memory).text)
    assert streamed[0].event == "message_start" and streamed[-1].event == "message_stop"
    assert not [event for event in streamed if event.json.get("content_block", {}).get("type") == "tool_use"]
    del body["tool_choice"], body["max_tokens"]
    counted = stack.http.post("/v1/messages/count_tokens", json=body, headers=memory).json()["input_tokens"]
    assert counted > stack.http.post("/v1/messages/count_tokens", json=body).json()["input_tokens"] + 100
    refused = stack.http.post("/v1/messages", json={**body, "max_tokens": 5, "memory": "none"})
    assert refused.status_code == 404 and "memory" in refused.json()["error"]["message"]


def test_a_killed_worker_leaves_nothing_half_done(fresh_stack):
    stack = fresh_stack
    stack.http.post("/api/memory/init", json={"policy": "auto", "min_chunks": 1})
    run(stack, "/api/memory/import", {"format": "jsonl", "content": jsonl(CORPUS).decode()})
    job = stack.http.post("/v1/memory/synthesize", json={}).json()["job"]["id"]
    eventually(lambda: stack.http.get(f"/api/jobs/{job}").json()["job"]["state"] == "running", what="the run to begin")
    stack.kill_and_wait("cpu")
    assert ended(stack, job)["state"] == "done"
    root = stack.home / "memory" / "wiki"
    assert subprocess.run(["git", "-C", root, "fsck", "--strict"], capture_output=True, text=True, check=True).stdout == ""
    asked = stack.sql("SELECT key, count(*) FROM rows_rowcall WHERE job = ? GROUP BY key HAVING count(*) > 1", job)
    assert asked == []
    assert run(stack, "/v1/memory/synthesize", {})["model_calls"] == 0
