"""The edge itself: bodies, methods, paths, hosts and origins, each refused as JSON in the dialect of the path."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.api.conftest import HELLO
from tests.system.stack import Stack

pytestmark = pytest.mark.stack

CHAT = "/v1/chat/completions"
GOOD = {"model": "tiny", "messages": HELLO, "max_tokens": 2}
Post = Callable[..., httpx.Response]
MIB = 1024 * 1024


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{bad",
        b"[]",
        b"null",
        b"5",
        b'{"a":"\xff"}',
        b"[" * 100_000,
        b'{"messages":' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"model":"tiny","max_tokens":4,"messages":[{"role":"user","content":"x \\ud800 y"}]}',
        b'{"model":"tiny","stream":true,"messages":[{"role":"user","content":"x \\ud800 y"}]}',
        b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"temperature":NaN}',
        b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"top_p":Infinity}',
        b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"presence_penalty":-Infinity}',
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses", "/v1/embeddings", "/v1/completions"])
def test_bodies_that_are_no_strict_json_object(post: Post, path: str, raw: bytes) -> None:
    response = post(path, raw=raw)
    assert response.status_code == 400
    answer = response.json()
    assert answer.get("type", "error") == "error"
    assert answer["error"]["type"] == "invalid_request_error"


def test_a_valid_pair_is_no_lone_surrogate(post: Post) -> None:
    raw = b'{"model":"tiny","max_tokens":2,"messages":[{"role":"user","content":"x \\ud83d\\ude00 y"}]}'
    assert post(CHAT, raw=raw).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "", "application/json; charset=utf-16", "application/x-www-form-urlencoded"])
def test_media_types_that_are_not_json(stack: Stack, kind: str) -> None:
    request = stack.http.build_request("POST", CHAT, content=b"{}", headers={"content-type": kind})
    if not kind:
        del request.headers["content-type"]
    response = stack.http.send(request)
    assert response.status_code == 415
    assert response.json()["error"]["code"] == "unsupported_media_type"


def test_bodies_below_the_limit_are_read(post: Post) -> None:
    long = {**GOOD, "messages": [{"role": "user", "content": "x" * (3 * MIB)}]}
    assert post(CHAT, long).json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_bodies_above_the_limit(stack: Stack, path: str, chunked: bool) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(12):
            yield b"x" * MIB

    content: Any = parts() if chunked else b"x" * (11 * MIB)
    response = stack.http.post(path, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 413
    error = response.json()["error"]
    assert error.get("code") == "request_too_large" or error["type"] == "request_too_large"


def test_gzip_bodies(post: Post) -> None:
    import json

    packed = gzip.compress(json.dumps(GOOD).encode())
    assert post(CHAT, raw=packed, headers={"content-encoding": "gzip"}).status_code == 200
    assert post(CHAT, raw=packed[:-4], headers={"content-encoding": "gzip"}).status_code == 400
    assert post(CHAT, raw=b"{}", headers={"content-encoding": "br"}).status_code == 415
    bomb = gzip.compress(b" " * (50 * MIB))
    assert post(CHAT, raw=bomb, headers={"content-encoding": "gzip"}).status_code == 413


@pytest.mark.parametrize("path", [CHAT + "/", "/" + CHAT, "/v1//chat/completions", "//v1/chat/completions/"])
def test_slashes_are_tolerated(stack: Stack, path: str) -> None:
    response = httpx.post(stack.base_url + path, json=GOOD)
    assert response.status_code == 200, response.text


def test_unknown_paths_and_methods(stack: Stack) -> None:
    missing = stack.http.get("/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_url")
    platform = stack.http.get("/api/nothing")
    assert (platform.status_code, platform.json()["ok"]) == (404, False)
    wrong = stack.http.put(CHAT, json=GOOD)
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert "POST" in wrong.headers["allow"]
    assert stack.http.get("/v1/embeddings").status_code == 405
    assert stack.http.head("/v1/models").status_code == 200
    assert stack.http.get("/v1/messages").json()["type"] == "error"


def test_models_by_id_in_both_spellings(stack: Stack) -> None:
    for model in stack.http.get("/v1/models").json()["data"]:
        raw = stack.http.get(f"/v1/models/{model['id']}")
        encoded = stack.http.get("/v1/models/" + model["id"].replace("/", "%2F"))
        assert raw.json() == encoded.json() == model
    missing = stack.http.get("/v1/models/org%2Fmissing:1.5")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"host": "evil.example"},
    ],
)
def test_pages_of_other_sites_drive_nothing(stack: Stack, headers: dict[str, str]) -> None:
    response = stack.http.post(CHAT, json=GOOD, headers=headers)
    assert response.status_code == 403
    assert response.json()["error"]["type"] == "permission_error"


def test_own_pages_and_no_browser_may(stack: Stack) -> None:
    assert stack.http.post(CHAT, json=GOOD, headers={"origin": stack.base_url}).status_code == 200
    assert stack.http.post(CHAT, json=GOOD, headers={"host": f"localhost:{stack.port}"}).status_code == 200


def test_preflights_of_other_sites_are_refused(stack: Stack) -> None:
    asked = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    assert stack.http.options(CHAT, headers=asked).status_code == 403


def test_health_is_one_exact_object(stack: Stack) -> None:
    assert stack.http.get("/health").content == b'{"status":"ok"}'
    assert stack.http.get("/readyz").json()["broker"] == "ok"
    assert stack.http.get("/stats").json()["models"]["current"] == "tiny"
    assert stack.http.get("/v1").json()["model"] == "tiny"


def test_a_request_id_is_kept(stack: Stack) -> None:
    assert stack.http.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    assert stack.http.get("/health", headers={"x-request-id": "bad id"}).headers["x-request-id"].startswith("req_")


def test_hosts_are_listed_with_what_they_say_of_themselves(stack: Stack) -> None:
    (host,) = stack.http.get("/api/hosts").json()["hosts"]
    assert host["name"] == "local"
    assert host["live"]["engine"]["state"]
    assert stack.model in [model["id"] for model in host["models"]]
