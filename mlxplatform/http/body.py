"""Reading a JSON request body: size, media type, encoding, strictness and depth, each refused in plain words.

Strict on purpose: NaN, Infinity, lone surrogates and broken UTF-8 are refused here, because a value that passes
comes out again in answers, events, files and a database that would not take it. Knows no field of any protocol.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from typing import Any

import msgspec
from django.conf import settings
from django.http import HttpRequest
from rest_framework.parsers import BaseParser

from mlxplatform.http.errors import JSON_TYPE
from mlxplatform.inference.contract import Refusal

MIB = 1024 * 1024
#: Deepest nesting of a body. Tool schemas reach about 20; renderers and schema compilers recurse.
MAX_DEPTH = 100
#: Bodies above this are parsed in a thread so that other streams keep flowing (10 MiB takes about 100 ms).
THREAD_ABOVE = 256 * 1024

#: The escape of a high half not followed by a low one; only used to word the reason of a refusal.
_LONE_SURROGATE = re.compile(rb"\\u[dD][89aAbB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")

_decoder = msgspec.json.Decoder()


def body_limit() -> int:
    return settings.ENV.max_body_mb * MIB


def too_large(limit: int) -> Refusal:
    return Refusal(413, "request_too_large", f"The request body is larger than the limit of {limit // MIB} MiB.")


async def read_json(request: HttpRequest, limit: int | None = None) -> dict[str, Any]:
    """The body as a JSON object.

    Raises:
        Refusal: 413 too large, 415 not JSON by its headers, 400 not a strict JSON object.
    """
    limit = body_limit() if limit is None else limit
    encoding = check_media_type(request)
    raw = request.read(limit + 1)
    if len(raw) > limit:
        raise too_large(limit)
    if len(raw) > THREAD_ABOVE or encoding == "gzip":
        return await asyncio.to_thread(parse_object, raw, limit, encoding)
    return parse_object(raw, limit, encoding)


def check_media_type(request: HttpRequest) -> str:
    """The content encoding ("identity" or "gzip") of a request that claims to be JSON in UTF-8.

    Raises:
        Refusal: 415. A missing Content-Type is refused too: a web page may send such a body to a local server
        without asking the browser's permission first.
    """
    content_type = request.content_type or ""
    if not (content_type == "application/json" or (content_type.startswith("application/") and content_type.endswith("+json"))):
        shown = f"not {content_type[:100]}" if content_type else "which is missing"
        raise Refusal(415, "unsupported_media_type", f"Send JSON with the header Content-Type: application/json, {shown}.")
    charset = (request.content_params or {}).get("charset", "utf-8").strip("'\" ").lower()
    if charset not in {"utf-8", "utf8", "us-ascii"}:
        raise Refusal(415, "unsupported_media_type", "JSON bodies are read as UTF-8 only; send no other charset.")
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower() or "identity"
    if encoding not in {"identity", "gzip"}:
        raise Refusal(415, "unsupported_media_type", "Content-Encoding must be absent, identity or gzip.")
    return encoding


def parse_object(raw: bytes, limit: int, encoding: str = "identity") -> dict[str, Any]:
    if encoding == "gzip":
        raw = _gunzip(raw, limit)
    value = parse_json(raw)
    if not isinstance(value, dict):
        raise Refusal(400, "invalid_json", "The request body must be a JSON object.")
    return value


def parse_json(raw: bytes) -> Any:
    """One strict JSON value.

    Raises:
        Refusal: 400 with a message that echoes nothing of the body.
    """
    if not raw.strip():
        raise Refusal(400, "invalid_json", "The request body is empty; send a JSON object.")
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refusal(400, "invalid_json", f"The request body is not valid UTF-8 (byte {error.start}).") from None
    try:
        value = _decoder.decode(raw)
    except RecursionError:
        raise Refusal(400, "invalid_json", f"The request body is nested deeper than {MAX_DEPTH} levels.") from None
    except msgspec.DecodeError as error:
        raise Refusal(400, "invalid_json", f"The request body is not valid JSON: {_reason(raw, error)}.") from None
    if _deeper_than(value, MAX_DEPTH):
        raise Refusal(400, "invalid_json", f"The request body is nested deeper than {MAX_DEPTH} levels.")
    return value


def _reason(raw: bytes, error: msgspec.DecodeError) -> str:
    if "surrogate" in str(error) or _LONE_SURROGATE.search(raw):
        return "a string holds half of a surrogate pair"
    return str(error).removeprefix("JSON is malformed: ").partition(" - at ")[0].rstrip(".")


def _deeper_than(value: Any, limit: int) -> bool:
    layer = [value]
    for _ in range(limit + 1):
        layer = [
            child
            for node in layer
            for child in (node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
            if isinstance(child, (dict, list))
        ]
        if not layer:
            return False
    return True


def _gunzip(raw: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj(wbits=31)
    try:
        out = stream.decompress(raw, limit + 1)
    except zlib.error:
        raise Refusal(400, "invalid_encoding", "The request body is not valid gzip.") from None
    if len(out) > limit:
        raise too_large(limit)
    if not stream.eof:
        raise Refusal(400, "invalid_encoding", "The gzip request body is cut off.")
    return out


class StrictJSONParser(BaseParser):
    """DRF's way to the same strict object."""

    media_type = JSON_TYPE

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> dict[str, Any]:
        limit = body_limit()
        raw = stream.read(limit + 1)
        if len(raw) > limit:
            raise too_large(limit)
        return parse_object(raw, limit)
