"""One Daphne process with 256 streams of 20 tokens a second each, the engine replaced by a replay source.

Bars, on two cores that are shared with the source, the broker and the clients: p99 of the latency added between the
source's publish and the client's read at most 250 ms; CPU of the whole web process at most 110 µs a chunk
while all of them run.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.system.stack import ROOT, clean_environment, eventually, free_port

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]

STREAMS, TOKENS, INTERVAL = 256, 200, 0.05
LATENCY_BAR_MS, CPU_BAR_US = 250.0, 110.0
#: Seconds over which the clients start.
RAMP = 3.0
#: Seconds after the last start, and before the first end, that are left out of the cost of a chunk.
SETTLE = 1.0
STAMP = re.compile(rb"@(\d+\.\d+)@")


@pytest.fixture
def web(home_template: Path, tmp_path: Path, broker: object, broker_server: str) -> Iterator[tuple[int, int]]:
    """A web process and a replay host on the broker: (port, pid of the web process)."""
    home = tmp_path / "home"
    shutil.copytree(home_template, home)
    port = free_port()
    more = {"PORT": str(port), "REDIS_URL": broker_server, "DJANGO_SETTINGS_MODULE": "mlxplatform.settings"}
    environ = clean_environment(home, **more)
    commands = (["-m", "mlxplatform.serve"], ["-m", "tests.fixtures.replay_host", str(TOKENS), str(INTERVAL)])
    started = [
        subprocess.Popen([sys.executable, *words], env=environ, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        for words in commands
    ]
    try:
        eventually(lambda: httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200, what="the web process")
        yield port, started[0].pid
    finally:
        for process in started:
            process.kill()
            process.wait()


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, its threads included; to 10 ms, as both systems count it."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists():
        # Behind the name in parentheses, which may hold anything, user and system time are the 12th and 13th.
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    spent = subprocess.run(["ps", "-o", "cputime=", "-p", str(pid)], check=True, capture_output=True, text=True).stdout
    minutes, _, seconds = spent.strip().rpartition(":")
    return sum(60 ** (power + 1) * float(part) for power, part in enumerate(reversed(minutes.split(":")))) + float(seconds)


async def one_stream(port: int, path: str, number: int, latencies: list[float]) -> int:
    """Chunks of one stream read from a bare socket: a client library would cost more than the server."""
    await asyncio.sleep(RAMP * number / STREAMS)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    turn = [{"role": "user", "content": "Go."}]
    body = json.dumps({"model": "replay", "max_tokens": 999, "stream": True, "messages": turn}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    chunks = 0
    while True:
        piece = await reader.read(65536)
        now = time.time()
        stamps = STAMP.findall(piece)
        latencies += [1000 * (now - float(stamp)) for stamp in stamps]
        chunks += len(stamps)
        if not piece or b"[DONE]" in piece or b"message_stop" in piece:
            break
    writer.close()
    return chunks


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_added_latency_and_cpu_of_many_streams(web: tuple[int, int], path: str, capsys: pytest.CaptureFixture[str]) -> None:
    port, pid = web
    latencies: list[float] = []

    def seen() -> tuple[int, float]:
        return len(latencies), cpu_seconds(pid)

    async def steady() -> float:
        """µs of CPU a chunk while all of them run: behind the requests' own work, before the first has ended."""
        await asyncio.sleep(RAMP + SETTLE)
        chunks, cpu = seen()
        await asyncio.sleep(TOKENS * INTERVAL - RAMP - 2 * SETTLE)
        more, later = seen()
        return 1e6 * (later - cpu) / (more - chunks)

    async def everybody() -> tuple[int, float, float]:
        _, before = seen()
        streams = (one_stream(port, path, number, latencies) for number in range(STREAMS))
        *counts, settled = await asyncio.gather(*streams, steady())
        assert set(counts) == {TOKENS}
        chunks, after = seen()
        return chunks, 1e6 * (after - before) / chunks, settled

    chunks, with_requests, per_chunk = asyncio.run(everybody())
    latencies.sort()
    p50, p99 = latencies[len(latencies) // 2], latencies[int(len(latencies) * 0.99)]
    with capsys.disabled():
        print(f"\n{path}: {STREAMS} streams, {chunks} chunks, on {os.cpu_count()} cores")
        print(f"  added latency p50 {p50:.1f} ms, p99 {p99:.1f} ms (bar {LATENCY_BAR_MS:.0f}), worst {latencies[-1]:.0f} ms")
        print(
            f"  web process {per_chunk:.1f} µs of CPU a chunk (bar {CPU_BAR_US:.0f}), {with_requests:.1f} with the requests' own"
        )
    assert p99 <= LATENCY_BAR_MS
    assert per_chunk <= CPU_BAR_US
