"""The server under clients that do not read, hang up, send too much, or speak badly."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import pytest

from tests.fixtures.bare_server import BODY_LIMIT
from tests.system.stack import ROOT, eventually, free_port

MIB = 2**20


@dataclass
class Running:
    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def facts(self) -> dict[str, int]:
        return httpx.get(f"{self.url}/facts").json()

    def raw(self, request: bytes) -> socket.socket:
        link = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        link.sendall(request)
        return link

    def ask(self, request: bytes) -> bytes:
        with self.raw(request) as link:
            answer = b""
            while piece := link.recv(65536):
                answer += piece
            return answer

    def memory(self) -> int:
        answer = subprocess.run(["ps", "-o", "rss=", "-p", str(self.process.pid)], capture_output=True, text=True, check=True)
        return int(answer.stdout) * 1024


@contextmanager
def running_server() -> Iterator[Running]:
    port = free_port()
    environ = {**os.environ, "DJANGO_SETTINGS_MODULE": "mlxplatform.settings"}
    process = subprocess.Popen([sys.executable, "-m", "tests.fixtures.bare_server", str(port)], cwd=ROOT, env=environ)
    running = Running(process, port)
    eventually(lambda: httpx.get(f"{running.url}/facts").status_code == 200, what="the server")
    try:
        yield running
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def server() -> Iterator[Running]:
    """A server of the test's own, with fresh facts."""
    with running_server() as running:
        yield running


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    """One server for the tests that neither count nor end it."""
    with running_server() as running:
        yield running


def test_a_client_that_does_not_read_stops_the_sender_and_costs_no_memory(server: Running) -> None:
    before = server.memory()
    with server.raw(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        seen = [0]

        def stands_still() -> bool:
            seen.append(server.facts()["sent"])
            return seen[-1] > 0 and len(seen) > 5 and len(set(seen[-5:])) == 1

        eventually(stands_still, what="a paused sender")
        assert seen[-1] < 16 * MIB  # what the two kernels' socket buffers hold
        assert server.memory() - before < 16 * MIB


def test_a_paused_sender_goes_on_when_the_client_reads(server: Running) -> None:
    with server.raw(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n") as link:
        received = 0
        while received < 64 * MIB:
            received += len(link.recv(MIB))
        assert server.facts()["sent"] >= 60 * MIB


def test_a_hang_up_cancels_the_application_also_while_it_waits_to_send(server: Running) -> None:
    link = server.raw(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
    eventually(lambda: server.facts()["sent"] > 0, what="a running stream")
    link.close()
    eventually(lambda: server.facts()["cancelled"] == 1, what="the cancelling")


def test_a_large_body_arrives_whole(shared: Running) -> None:
    assert len(httpx.get(f"{shared.url}/big").content) == 8 * MIB


def test_a_body_over_the_limit_is_cut_one_byte_behind_it_and_not_kept(server: Running) -> None:
    before = server.memory()
    pieces = (bytes(MIB) for _ in range(200))
    answer = httpx.post(f"{server.url}/echo", content=pieces, timeout=60)
    assert answer.json() == {"size": BODY_LIMIT + 1}
    assert server.memory() - before < 32 * MIB


def test_a_body_at_the_limit_is_passed_on_whole(shared: Running) -> None:
    assert httpx.post(f"{shared.url}/echo", content=bytes(BODY_LIMIT)).json() == {"size": BODY_LIMIT}


def test_head_has_headers_and_no_body(shared: Running) -> None:
    answer = shared.ask(b"HEAD /facts HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert body == b""


@pytest.mark.parametrize("path", ["/v1/x", "/api/x", "/v1/messages"])
def test_a_malformed_header_is_refused_as_json(shared: Running, path: str) -> None:
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nBad Name: x\r\nConnection: close\r\n\r\n".encode()
    head, _, body = shared.ask(request).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"understood" in body
    assert json.loads(body)


def test_a_path_that_is_no_ascii_is_refused_as_json(shared: Running) -> None:
    answer = shared.ask(b"GET /v1/\xff\xfe HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"application/json" in head
    assert json.loads(body)["error"]


@pytest.mark.parametrize(
    "request_bytes",
    [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1000 + b"\r\n", b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n"],
    ids=["no request", "many headers", "long path"],
)
def test_what_is_no_request_ends_the_connection_and_nothing_else(shared: Running, request_bytes: bytes) -> None:
    try:
        answer = shared.ask(request_bytes)
    except ConnectionError:
        answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    assert shared.facts()


def test_a_failure_before_the_answer_is_a_plain_500(shared: Running) -> None:
    answer = httpx.get(f"{shared.url}/v1/broken")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "meant" not in answer.text


def test_a_failure_within_the_answer_cuts_the_connection(shared: Running) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"{shared.url}/halfway")


def test_sigterm_lets_running_requests_finish(server: Running) -> None:
    link = server.raw(b"GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    eventually(lambda: server.facts()["running"] == 1, what="the request")
    server.process.send_signal(signal.SIGTERM)
    answer = b""
    while piece := link.recv(65536):
        answer += piece
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"0\r\n\r\n")
    assert server.process.wait(10) == 0


def test_sigterm_cancels_what_never_finishes(server: Running) -> None:
    with server.raw(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        eventually(lambda: server.facts()["sent"] > 0, what="a running stream")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0


def test_a_kept_connection_ends_with_its_next_answer_once_the_server_leaves(server: Running) -> None:
    with server.raw(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n"), httpx.Client(base_url=server.url) as kept:
        kept.get("/facts")
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: kept.get("/facts").headers.get("connection") == "close", what="an answer of the leaving server")
        with pytest.raises(httpx.TransportError):  # a new connection, which nobody accepts any more
            kept.get("/facts")
