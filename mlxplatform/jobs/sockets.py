"""``/ws/jobs/{id}``: a job's events over WebSocket, from the number in ``?after=`` on.

One text message per event, the same JSON as the event stream's ``data:``. The socket closes with 1000 after the
terminal event, with 4404 for an unknown job, with 4401 when its key is no longer valid and with 1012 when a signed-in
person's web process is replaced by another; whoever may not see jobs gets no socket. What the client sends is ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from io import BytesIO
from typing import Any
from urllib.parse import parse_qs

import msgspec
from asgiref.sync import sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.core.handlers.asgi import ASGIRequest

from mlxplatform.accounts.actors import PERSON
from mlxplatform.accounts.identity import identify, still_welcome
from mlxplatform.accounts.middleware import RECHECK_SECONDS
from mlxplatform.inference.contract import Refusal
from mlxplatform.jobs import queries
from mlxplatform.jobs.feed import feed

#: Close code of our own range: the WebSocket way to say 404.
NOT_FOUND = 4404
#: The same for 401, after the key was revoked or expired.
NO_LONGER = 4401
#: The standard's "service restart": connect again.
RESTART = 1012


class JobSocket(AsyncWebsocketConsumer):
    """Pushes; never trusts a channel layer to deliver."""

    _tasks: Sequence[asyncio.Task[None]] = ()

    async def connect(self) -> None:
        job_id = self.scope["url_route"]["kwargs"]["job_id"]
        request = ASGIRequest({**self.scope, "type": "http", "method": "GET", "path": f"/api/jobs/{job_id}"}, BytesIO())
        request.user = self.scope["user"]
        try:
            request.identity = await identify(request)  # type: ignore[attr-defined]
        except Refusal:
            await self.close()  # before accepting: the handshake is answered with 403
            return
        request.project = request.identity.project  # type: ignore[attr-defined]
        await self.accept()
        last_seq = await sync_to_async(_last_seq)(request, job_id)
        if last_seq is None:
            await self.close(NOT_FOUND)
            return
        after = _after(self.scope.get("query_string", b""), last_seq)
        returns = request.identity.actor.startswith(PERSON)  # type: ignore[attr-defined]
        self._tasks = [
            asyncio.ensure_future(self._follow(job_id, after, returns)),
            asyncio.ensure_future(self._watch(request)),
        ]

    async def disconnect(self, code: int) -> None:
        for task in self._tasks:
            task.cancel()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        return

    async def _follow(self, job_id: str, after: int, returns: bool) -> None:
        events = feed().follow(job_id, after, returns=returns)
        try:
            async for page in events:
                for event in page:
                    await self.send(text_data=msgspec.json.encode(event).decode())
        finally:
            await events.aclose()
        await self.close(RESTART if returns and feed().left else 1000)

    async def _watch(self, request: ASGIRequest) -> None:
        """The socket ends with the key, or the person, that opened it."""
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            if not await still_welcome(request, request.identity):  # type: ignore[attr-defined]
                await self.close(NO_LONGER)
                return


def _last_seq(request: ASGIRequest, job_id: str) -> int | None:
    if "\0" in job_id:  # no id holds one, and PostgreSQL fails on it instead of finding nothing
        return None
    value: Any = queries.visible(request).filter(pk=job_id).values_list("last_seq", flat=True).first()
    return value


def _after(query: bytes, last_seq: int) -> int:
    """Where to begin; anything that cannot be served means from the start."""
    raw = parse_qs(query.decode("latin-1")).get("after", ["0"])[-1]
    number = int(raw) if raw.isascii() and raw.isdigit() and len(raw) <= 18 else 0
    return number if number <= last_seq else 0
