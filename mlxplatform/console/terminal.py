"""What terminal commands share: the address of the running platform, and its event streams read line by line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import httpx
from django.conf import settings
from django.core.management.base import CommandError

#: Environment variable with a key for the commands, where keys are needed.
KEY_VARIABLE = "MLX_API_KEY"


def address() -> str:
    host = settings.ENV.host
    if host in {"0.0.0.0", "::"}:  # noqa: S104  every address includes this machine's own
        host = "127.0.0.1"
    return f"http://[{host}]:{settings.ENV.port}" if ":" in host else f"http://{host}:{settings.ENV.port}"


def client() -> httpx.Client:
    """A client of the platform that serves this data directory; answers may take as long as they take."""
    key = os.environ.get(KEY_VARIABLE)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(base_url=address(), headers=headers, timeout=httpx.Timeout(10, read=None), trust_env=False)


def events(answer: httpx.Response) -> Iterator[tuple[str, str]]:
    """(event name, data) of each frame of a server-sent event stream."""
    name, data = "message", []
    for line in answer.iter_lines():
        if line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield name, "\n".join(data)
            name, data = "message", []


def explained(answer: httpx.Response) -> CommandError:
    """An error answer of any of our dialects as one sentence."""
    answer.read()
    try:
        body: Any = answer.json()
        error = body.get("error", "")
        message = error.get("message", "") if isinstance(error, dict) else str(error)
    except (json.JSONDecodeError, AttributeError):
        message = ""
    return CommandError(message or f"the platform answered {answer.status_code}")


def unreachable() -> CommandError:
    return CommandError(f"nothing answers at {address()}; start it with: make run")
