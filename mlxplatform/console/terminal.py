"""What terminal commands share: the running platform as a client sees it, its event streams, and text that may be printed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import httpx
from django.conf import settings
from django.core.management.base import CommandError, OutputWrapper
from rich.console import Console

#: Environment variable with a key for the commands, where keys are needed.
KEY_VARIABLE = "MLX_API_KEY"
#: The one command of an installed package.
PACKAGED = "mlx-platform"
#: Columns of what is written to a file or a pipe.
PLAIN_WIDTH = 120
#: What a terminal would obey instead of show: control characters but for tab and line feed. Models and files write the texts.
_COMMANDING = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)} | {13: None}


@dataclass(frozen=True)
class Frame:
    """One frame of a server-sent event stream; ``id`` is "" where it has none."""

    event: str
    data: str
    id: str


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


def frames(answer: httpx.Response) -> Iterator[Frame]:
    """Each whole frame of a server-sent event stream."""
    name, number, data = "message", "", []
    for line in _lines(answer):
        if line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("id:"):
            number = line[3:].strip()
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line:
            if data:
                yield Frame(name, "\n".join(data), number)
            name, number, data = "message", "", []


def _lines(answer: httpx.Response) -> Iterator[str]:
    """The lines of a stream, ended by line feeds alone: httpx would also cut at the separators that JSON text may hold."""
    rest = ""
    for piece in answer.iter_text():
        *whole, rest = (rest + piece).split("\n")
        for line in whole:
            yield line.removesuffix("\r")


def asked(client: httpx.Client, method: str, path: str, **options: Any) -> dict[str, Any]:
    """The JSON answer to a request.

    Raises:
        CommandError: the refusal in its own words, or that nothing answers.
    """
    try:
        answer = client.request(method, path, **options)
    except httpx.TransportError:
        raise unreachable() from None
    if not answer.is_success:
        raise explained(answer)
    try:
        body: dict[str, Any] = answer.json()
    except ValueError:
        raise CommandError(f"what answers at {address()} is not this platform") from None
    if body.get("ok") is False:
        raise explained(answer)
    return body


def screen(stdout: OutputWrapper) -> Console:
    """A rich console on a command's output."""
    # The wrapper adds line ends of its own; rich wants the stream below it.
    file = cast("IO[str]", stdout._out)
    return Console(file=file, width=None if stdout.isatty() else PLAIN_WIDTH, highlight=False, markup=False, emoji=False)


def printable(text: str) -> str:
    """A text of somebody else's without what would command the terminal."""
    return text.translate(_COMMANDING)


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
    start = PACKAGED if program() == PACKAGED else "make run"
    return CommandError(f"nothing answers at {address()}; start it with: {start}")


def program() -> str:
    """What this command was typed as, for hints: of an installed package, or of a clone."""
    return PACKAGED if Path(sys.argv[0]).name == PACKAGED else "manage.py"
