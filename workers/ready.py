"""What the person at the terminal is told: the address once the platform answers, or what it waits for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from mlxplatform.environment import Environment
from workers.output import Output

#: Seconds between two looks at /health while starting.
POLL = 0.2
#: Looks at /stats for the served model's name before the banner goes without it.
MODEL_LOOKS = 15
#: Seconds between two words about a start that takes long.
PATIENCE = 30.0
#: Addresses only this machine reaches.
LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def base_url(settings: Environment) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(settings.host, settings.host)  # noqa: S104
    return f"http://{host}:{settings.port}"


async def get(settings: Environment, path: str) -> tuple[int, bytes]:
    """One GET at our own web process; (0, b"") when nobody answers."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104
    try:
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection(host, settings.port)
            try:
                writer.write(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
                head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
            finally:
                writer.close()
            return int(head.split(b" ", 2)[1]), body
    except (OSError, TimeoutError, ValueError, IndexError):
        return 0, b""


def _model_line(body: bytes) -> str:
    """The served model with its type and BLAS, as far as /stats tells."""
    try:
        stats: Any = json.loads(body)
        for host in stats.get("hosts", [stats]):
            for model in host.get("models", []):
                if model.get("current") and model.get("kind", "chat") == "chat":
                    facts = [str(model[key]) for key in ("dtype", "blas") if model.get(key)]
                    return f"{model['id']} ({', '.join(facts)})" if facts else str(model["id"])
    except (ValueError, KeyError, AttributeError, TypeError):
        pass
    return ""


def banner(url: str, model: str, password: str, *, exposed: bool = False) -> str:
    lines = [f"MLX Platform is ready: {url}"]
    if exposed:
        lines.append(
            "  WARNING  other machines reach this over plain HTTP: keys and answers can be read on the way. Put TLS in front"
        )
        lines.append("           (docs/guide/deploy), or serve 127.0.0.1 only.")
    if model:
        lines.append(f"  model  {model}")
    lines.append(f"  pages  {url}/" + (f"  user admin, password {password}  (shown once)" if password else ""))
    lines.append(
        f"  try    curl -N {url}/v1/chat/completions -H 'content-type: application/json' "
        """-d '{"stream":true,"messages":[{"role":"user","content":"Why is the sky blue?"}]}'"""
    )
    return "\n".join(lines)


async def announce(settings: Environment, told: Mapping[str, str], output: Output) -> None:
    """Wait until /health says ok, then print the banner once."""
    loop = asyncio.get_running_loop()
    started = said = loop.time()
    while True:
        status, _ = await get(settings, "/health")
        if status == 200:
            break
        if loop.time() - said > PATIENCE:
            said = loop.time()
            waits_for = "the web process to answer" if status == 0 else "the engine to load its model"
            output.say(f"still starting after {said - started:.0f} s: waiting for {waits_for}")
        await asyncio.sleep(POLL)
    model = ""
    for _ in range(MODEL_LOOKS):
        _, stats = await get(settings, "/stats")
        if model := _model_line(stats):
            break
        await asyncio.sleep(POLL)
    output.say(banner(base_url(settings), model, told.get("admin_password", ""), exposed=settings.host not in LOOPBACK))
