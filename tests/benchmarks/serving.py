"""Servers side by side: the same questions to ours and to ``mlx_lm.server``, tokens and times compared."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.system.stack import ROOT, eventually, free_port

Conversation = list[dict[str, str]]

#: One for all: a client of its own costs each request 40 ms of the machine under test, for certificates nobody needs.
http = httpx.Client(timeout=900, limits=httpx.Limits(max_connections=None, max_keepalive_connections=64))

#: Starts mlx_lm.server with the BLAS and threads our engine uses; without it, it runs as installed.
_SAME = """
import runpy, sys
from workers.engine import platform
platform.prepare()
sys.argv[0] = "mlx_lm.server"
runpy.run_module("mlx_lm.server", run_name="__main__")
"""


@dataclass(frozen=True)
class Answered:
    """One streamed answer: tokens, and seconds to its first piece of text and to its end."""

    tokens: int
    first: float
    seconds: float


@dataclass(frozen=True)
class Server:
    """A running OpenAI-type server. ``endless`` forbids the tiny model's special tokens, so that it never ends by itself."""

    base_url: str
    model: str
    endless: bool = False

    def stream(self, messages: Conversation, tokens: int) -> Answered:
        """Ask greedily and read to the end."""
        body: dict[str, object] = {
            "model": self.model,
            "messages": messages,
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.endless:
            body["logit_bias"] = {"0": -100, "1": -100, "2": -100}
        began, first, used = time.perf_counter(), 0.0, 0
        with http.stream("POST", f"{self.base_url}/v1/chat/completions", json=body) as answer:
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                if not first and event["choices"] and event["choices"][0]["delta"].get("content"):
                    first = time.perf_counter() - began
                if event.get("usage"):
                    used = event["usage"]["completion_tokens"]
        return Answered(used, first, time.perf_counter() - began)

    def together(self, conversations: Sequence[Conversation], tokens: int) -> float:
        """Tokens per second of several streams at once, prefill included."""
        with ThreadPoolExecutor(len(conversations)) as pool:
            began = time.perf_counter()
            answers = list(pool.map(lambda one: self.stream(one, tokens), conversations))
            return sum(answer.tokens for answer in answers) / (time.perf_counter() - began)

    def first_while_busy(self, busy: Sequence[Conversation], late: Conversation, *, tokens: int, settle: float) -> float:
        """Seconds to the first token of ``late``, sent ``settle`` seconds after ``busy`` began."""
        with ThreadPoolExecutor(len(busy)) as pool:
            running = [pool.submit(self.stream, one, tokens) for one in busy]
            time.sleep(settle)
            found = self.stream(late, 1).first
            for one in running:
                one.result()
        return found


@contextmanager
def mlx_lm_server(folder: Path, *, same_blas: bool) -> Iterator[Server]:
    """``mlx_lm.server`` on a model directory."""
    port = free_port()
    start = ["-c", _SAME] if same_blas else ["-m", "mlx_lm.server"]
    command = [sys.executable, *start, "--model", str(folder), "--port", str(port), "--log-level", "ERROR"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    server = Server(f"http://127.0.0.1:{port}", str(folder))
    try:
        eventually(lambda: httpx.get(f"{server.base_url}/health").status_code == 200, seconds=120, what="mlx_lm.server")
        server.stream([{"role": "user", "content": "Hi"}], 2)
        yield server
    finally:
        process.kill()
        process.wait()


def quantized(folder: Path, target: Path) -> Path:
    """The 4-bit form of a model, as a first-time user gets it."""
    code = "import sys; from mlx_lm import convert; convert(sys.argv[1], sys.argv[2], quantize=True, dtype='bfloat16')"
    subprocess.run([sys.executable, "-c", code, str(folder), str(target)], cwd=ROOT, check=True, capture_output=True)
    return target
