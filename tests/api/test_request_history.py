"""Every finished request of every protocol leaves one line; what was said is kept only where it may be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.system.stack import Stack, eventually

pytestmark = pytest.mark.stack

TURN = [{"role": "user", "content": "What is the capital of France?"}]
CHAT = {"model": "tiny", "messages": TURN, "max_tokens": 8, "temperature": 0}
#: The tokens that end an answer, forbidden.
ENDLESS = {"logit_bias": {"0": -100, "2": -100}}


def line_of(stack: Stack, request_id: str) -> dict[str, Any]:
    def found() -> Any:
        answer = stack.http.get(f"/api/requests/{request_id}")
        return answer.status_code == 200 and answer.json()["request"]

    return eventually(found, what=f"the line about {request_id}")  # type: ignore[no-any-return]


def ask(stack: Stack, path: str, body: dict[str, Any], **headers: str) -> str:
    """Ask, stream or not, and return the answer's id."""
    answer = stack.http.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    if not body.get("stream"):
        return str(answer.json()["id"])
    first = next(json.loads(line[5:]) for line in answer.text.splitlines() if line.startswith("data:"))
    return str(first.get("id") or first.get("message", first.get("response", {})).get("id"))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", {**CHAT, "store": True}),
        ("/v1/completions", {"model": "tiny", "prompt": "The river", "max_tokens": 4}),
        ("/v1/responses", {"model": "tiny", "input": TURN, "max_output_tokens": 8, "store": True}),
        ("/v1/messages", CHAT),
    ],
)
def test_each_protocol_leaves_a_line_with_what_was_said(stack: Stack, path: str, body: dict[str, Any], stream: bool) -> None:
    line = line_of(stack, ask(stack, path, {**body, "stream": stream}))
    assert (line["path"], line["model"], line["stream"]) == (path, "tiny", stream)
    assert line["outcome"] in {"completed", "incomplete"}
    assert line["prompt_tokens"] > 0 and line["completion_tokens"] > 0
    said = line["content"]
    asked = said["messages"][-1]["content"] if said["messages"] else said["prompt"]
    assert asked in {TURN[0]["content"], "The river"}
    assert said["answers"][0]["text"]


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        ("/v1/chat/completions", {**CHAT, "store": False}, {}),
        ("/v1/responses", {"model": "tiny", "input": "Hi", "max_output_tokens": 4, "store": False}, {}),
        ("/v1/messages", CHAT, {"x-mlxplatform-store": "false"}),
    ],
)
def test_words_that_are_not_to_be_kept_are_not(stack: Stack, path: str, body: dict[str, Any], headers: dict[str, str]) -> None:
    line = line_of(stack, ask(stack, path, body, **headers))
    assert line["content"] is None and line["completion_tokens"] > 0


def test_a_stream_that_was_left_is_a_line_without_words(stack: Stack) -> None:
    body = {**CHAT, "max_tokens": 1900, "stream": True, **ENDLESS}
    with stack.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data:"))
        request_id = json.loads(next(lines)[5:])["id"]
        next(lines)
    line = line_of(stack, request_id)
    assert (line["outcome"], line["content"]) == ("cancelled", None)


def test_lines_are_listed_searched_exported_and_removed(stack: Stack) -> None:
    word = "zanzibarbarian"
    request_id = ask(stack, "/v1/messages", {**CHAT, "messages": [{"role": "user", "content": f"Say {word}."}]})
    line_of(stack, request_id)
    listed = stack.http.get("/api/requests", params={"q": word.upper()}).json()
    assert [row["id"] for row in listed["requests"]] == [request_id]
    assert "content" not in listed["requests"][0]
    exported = stack.http.get("/api/requests/export", params={"q": word})
    assert [json.loads(row)["id"] for row in exported.text.splitlines()] == [request_id]
    assert stack.http.delete(f"/api/requests/{request_id}").json()["deleted"]
    assert [row["action"] for row in stack.http.get("/api/audit").json()["entries"] if row["target"] == request_id] == [
        "request.delete"
    ]
    assert stack.http.get(f"/api/requests/{request_id}").json() == {
        "ok": False,
        "error": "request not found",
        "code": "request_not_found",
        "field": None,
    }
    assert stack.http.get("/api/requests", params={"outcome": "odd"}).status_code == 400


def test_the_bounds_and_numbers_are_in_the_statistics(stack: Stack) -> None:
    store = stack.http.get("/stats").json()["response_store"]
    assert set(store) == {"entries", "requests", "bytes", "max_bytes", "ttl_ms"}
