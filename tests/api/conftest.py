"""Fixtures of the wire-protocol tests: plain HTTP to the running platform, checked on every answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.api.sse import strict
from tests.system.stack import Stack

HELLO = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def post(stack: Stack) -> Callable[..., httpx.Response]:
    """POST a body (or raw bytes) and check what every answer must be: strict JSON with a request id, or a stream."""

    def send(path: str, body: Any = None, *, raw: bytes | None = None, headers: dict[str, str] | None = None) -> httpx.Response:
        sent = {"content-type": "application/json", **(headers or {})}
        if raw is None:
            response = stack.http.post(path, json=body, headers=headers)
        else:
            response = stack.http.post(path, content=raw, headers=sent)
        assert response.headers["x-request-id"]
        if response.headers["content-type"].startswith("application/json"):
            strict(response.text)
        return response

    return send


@pytest.fixture
def refused(post: Callable[..., httpx.Response]) -> Callable[..., dict[str, Any]]:
    """POST a body that must be refused, plainly, in both stream modes; its OpenAI error object."""

    def send(path: str, body: dict[str, Any], status: int = 400, param: str | None = None) -> dict[str, Any]:
        errors = []
        for stream in (False, True):
            response = post(path, {**body, "stream": stream} if stream or "stream" not in body else body)
            assert response.status_code == status, response.text
            assert response.headers["content-type"] == "application/json"
            errors.append(response.json()["error"])
            assert set(errors[-1]) == {"message", "type", "param", "code"}
        assert errors[0] == errors[1]
        if param is not None:
            assert (errors[0]["param"] or "").startswith(param), errors[0]
        return errors[0]

    return send
