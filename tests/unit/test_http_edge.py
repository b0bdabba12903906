"""Bodies, paths, frames and fields at the edge, without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxplatform.api.fields import Fields, honoured, ignored, integer, number, read_fields, refused, table
from mlxplatform.http import sse
from mlxplatform.http.body import parse_object
from mlxplatform.http.errors import dialect_of, error_body
from mlxplatform.http.front import Front, tidy
from mlxplatform.inference.contract import Refusal

SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20)
JSON = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(max_size=5), SCALARS, max_size=3)


@settings(deadline=None)  # parsing is quick, this machine may not be
@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_strict_parsing_reads_what_is_json(value: dict[str, Any]) -> None:
    raw = json.dumps(value, ensure_ascii=False)
    try:
        encoded = raw.encode()
    except UnicodeEncodeError:
        return
    assert parse_object(encoded, 10**6) == value


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_a_refusal(raw: bytes) -> None:
    try:
        value = parse_object(raw, 1000)
    except Refusal as refusal:
        assert refusal.status == 400
    else:
        assert isinstance(value, dict)


@pytest.mark.parametrize(
    ("path", "tidied"),
    [
        ("/v1/models/", "/v1/models"),
        ("//v1/models", "/v1/models"),
        ("/v1//chat/completions/", "/v1/chat/completions"),
        ("/admin/", "/admin/"),
        ("/", "/"),
        ("//admin/", "/admin/"),
        ("http://127.0.0.1:8000/v1//models/", "/v1/models"),
        ("HTTPS://x", "/"),
        ("/v1/models/http://x", "/v1/models/http:/x"),
    ],
)
def test_tidy_paths(path: str, tidied: str) -> None:
    assert tidy(path) == tidied


def test_dialects() -> None:
    assert [
        dialect_of(path) for path in ("/v1/messages", "/v1/messages/batches", "/v1/models", "/v1/messagesx", "/api/jobs", "/x")
    ] == [
        "anthropic",
        "anthropic",
        "openai",
        "openai",
        "platform",
        "page",
    ]
    refusal = Refusal(429, "queue_full", "Busy.", retry_after=1)
    assert error_body("openai", refusal)["error"]["type"] == "resource_admission"
    assert error_body("anthropic", refusal)["error"]["type"] == "rate_limit_error"
    assert error_body("platform", refusal) == {"ok": False, "error": "Busy.", "code": "queue_full", "field": None}


async def test_a_body_past_its_limit_is_drained_and_refused() -> None:
    parts = [b"x" * (1024 * 1024)] * 12
    reads = 0
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        nonlocal reads
        reads += 1
        return {"type": "http.request", "body": parts[reads - 1], "more_body": reads < len(parts)}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        raise AssertionError("the application read it all")

    async def send(message: Any) -> None:
        sent.append(message)

    await Front(app)({"type": "http", "path": "/v1/messages", "headers": []}, receive, send)
    assert reads == len(parts)
    assert sent[0]["status"] == 413
    assert json.loads(sent[1]["body"])["error"]["type"] == "request_too_large"


async def test_heartbeats_fill_silence_and_the_source_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "heartbeat_seconds", lambda: 0.01)
    closed = asyncio.Event()
    go = asyncio.Event()

    async def source() -> AsyncGenerator[bytes, None]:
        try:
            yield b"first"
            await go.wait()
            yield b"second"
        finally:
            closed.set()

    got: list[bytes] = []
    async for frame in sse.with_heartbeats(source()):
        got.append(frame)
        if got.count(sse.comment()) == 2:
            go.set()
    assert got[0] == b"first" and got[-1] == b"second"
    assert closed.is_set()


FIELDS = table(
    honoured("size", integer(1, 9)), refused("voice", "Text only.", ""), ignored("user", "no use"), honoured("t", number(0, 2))
)


def test_fields_are_honoured_refused_or_named() -> None:
    fields = read_fields({"size": 3, "voice": "", "user": "u", "other": 1, "t": None}, FIELDS)
    assert fields == Fields({"size": 3, "voice": ""}, ("user", "other"))
    for body, param in (
        ({"size": 0}, "size"),
        ({"size": 2.0}, "size"),
        ({"size": True}, "size"),
        ({"voice": "x"}, "voice"),
        ({"t": "1"}, "t"),
    ):
        with pytest.raises(Refusal) as refusal:
            read_fields(body, FIELDS)
        assert (refusal.value.status, refusal.value.param) == (400, param)
