"""The outermost ASGI layer: tidy paths and bounded bodies, before Django reads anything.

Django spools a whole request body to disk before any view runs, so a size limit inside a view would come after the
disk is full. Here the body is counted as it arrives; past the limit the rest is drained unread and the answer is a
413 in the path's dialect, on a connection that is not reset. Doubled and trailing slashes of API paths are
normalised here rather than by redirects, which lose POST bodies.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from django.conf import settings

from mlxplatform.http.body import MIB, body_limit, too_large
from mlxplatform.http.errors import dialect_of, error_body, to_json

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

#: Paths that take files; their limit is the file limit.
_UPLOADS = re.compile(
    r"^/(v1/(files|audio|uploads|messages/batches)|api/(files|datasets|models|conversations|memory))(/|$)|^/admin/|^/console/"
)
#: Room for multipart boundaries and form fields around a file of the largest size.
_MULTIPART_MARGIN = MIB


#: What clients that believe in a proxy write in front of the path. The name that counts is the one in the Host header.
_ABSOLUTE = re.compile(r"^https?://[^/]*", re.IGNORECASE)


def tidy(path: str) -> str:
    """An API path without doubled or trailing slashes, nor the server's own name; other paths as they are."""
    path = _ABSOLUTE.sub("", path) or "/"
    single = re.sub(r"/{2,}", "/", path)
    if dialect_of(single) == "page":
        return single if path.startswith("//") else path
    return single.rstrip("/")


def limit_of(path: str) -> int:
    return settings.ENV.max_file_mb * MIB + _MULTIPART_MARGIN if _UPLOADS.match(path) else body_limit()


class Front:
    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = tidy(scope["path"])
        if path != scope["path"]:
            scope = {**scope, "path": path, "raw_path": path.encode("utf-8", "replace")}
        limit = limit_of(path)
        declared = dict(scope["headers"]).get(b"content-length", b"")
        if declared.isdigit() and int(declared) > limit:
            await _drain(receive)
            await _refuse(path, limit, send)
            return
        counted = _Counted(receive, limit)
        try:
            await self._app(scope, counted, send)
        except _TooLarge as passed:
            if passed.more_body:
                await _drain(receive)
            await _refuse(path, limit, send)


class _TooLarge(Exception):
    """The body passed its limit while the application was still reading it, so nothing was answered yet."""

    def __init__(self, more_body: bool) -> None:
        self.more_body = more_body


class _Counted:
    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._left = limit

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                raise _TooLarge(message.get("more_body", False))
        return message


async def _drain(receive: Receive) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return


async def _refuse(path: str, limit: int, send: Send) -> None:
    body = to_json(error_body(dialect_of(path), too_large(limit)))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": body})
