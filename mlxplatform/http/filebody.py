"""Sending a stored file: whole or one range of it, read piece by piece as the client takes it.

An async iterator, because a plain file body would be read into memory as a whole by the server in front. Answers
Range, If-Range and If-None-Match for files that never change under their ETag.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse

from mlxplatform.http.errors import error_response
from mlxplatform.inference.contract import Refusal

#: Bytes read at once: large enough that thread hops do not count, small enough for many slow readers.
PIECE = 256 * 1024

_RANGE = re.compile(r"^bytes=([0-9]{0,19})-([0-9]{0,19})\Z")


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """(first, last) asked for, None for the whole file (no header, several ranges, another unit).

    Raises:
        ValueError: a range that lies outside the file.
    """
    found = _RANGE.match((header or "").strip())
    if not found or found.group(1) == found.group(2) == "":
        return None
    first_text, last_text = found.groups()
    if not first_text:
        length = int(last_text)
        if length == 0:
            raise ValueError("empty suffix")
        first, last = max(size - length, 0), size - 1
    else:
        first, last = int(first_text), min(int(last_text), size - 1) if last_text else size - 1
        if last_text and int(last_text) < first:
            return None
    if first >= size:
        raise ValueError("beyond the end")
    return first, last


async def send_file(
    request: HttpRequest,
    path: Path,
    *,
    name: str,
    content_type: str = "application/octet-stream",
    etag: str = "",
    headers: dict[str, str] | None = None,
) -> HttpResponseBase:
    """The file as an attachment called ``name``.

    Raises:
        Refusal: 404 when it is gone.
    """
    try:
        size = (await asyncio.to_thread(path.stat)).st_size
    except OSError:
        raise Refusal(404, "file_not_found", "The file is not here any more.") from None
    common = {
        "Accept-Ranges": "bytes",
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "X-Content-Type-Options": "nosniff",
        **({"ETag": f'"{etag}"'} if etag else {}),
        **(headers or {}),
    }
    if etag and f'"{etag}"' in request.headers.get("If-None-Match", ""):
        return HttpResponse(status=304, headers=common)
    wanted = request.headers.get("Range")
    if wanted and request.headers.get("If-Range") not in (None, f'"{etag}"'):
        wanted = None
    try:
        part = byte_range(wanted, size)
    except ValueError:
        refused = error_response(request, Refusal(416, "range_not_satisfiable", f"The file has {size} bytes.", param="Range"))
        refused["Content-Range"] = f"bytes */{size}"
        return refused
    first, last = part or (0, size - 1)
    response = StreamingHttpResponse(
        _pieces(path, first, last - first + 1),
        status=206 if part else 200,
        content_type=content_type,
        headers={**common, "Content-Length": str(last - first + 1)},
    )
    if part:
        response["Content-Range"] = f"bytes {first}-{last}/{size}"
    return response


async def _pieces(path: Path, first: int, left: int) -> AsyncIterator[bytes]:
    file: BinaryIO = await asyncio.to_thread(path.open, "rb")
    try:
        file.seek(first)
        while left > 0:
            piece = await asyncio.to_thread(file.read, min(PIECE, left))
            if not piece:
                return
            left -= len(piece)
            yield piece
    finally:
        file.close()
