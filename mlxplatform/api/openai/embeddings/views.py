"""``POST /v1/embeddings``."""

from __future__ import annotations

import array
import base64
import sys
from typing import Any

from django.http import HttpRequest, HttpResponseBase

from mlxplatform.api.openai.embeddings.parse import parse
from mlxplatform.api.running import Choices, gather, place_call
from mlxplatform.http.body import read_json
from mlxplatform.http.errors import json_response
from mlxplatform.http.views import endpoint


def floats(vector: bytes) -> list[float]:
    """Numbers of a little-endian float32 vector."""
    values = array.array("f")
    values.frombytes(vector)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def embedding_value(vector: bytes, as_base64: bool) -> str | list[float]:
    return base64.b64encode(vector).decode() if as_base64 else floats(vector)


async def create(request: HttpRequest) -> HttpResponseBase:
    call = await place_call(request, parse(await read_json(request)))
    (answer,) = await gather(call, await Choices.submit(call.requests))
    data: list[dict[str, Any]] = [
        {"object": "embedding", "index": index, "embedding": embedding_value(vector, call.asked.extra)}
        for index, vector in enumerate(answer.vectors)
    ]
    usage = {"prompt_tokens": answer.usage.prompt, "total_tokens": answer.usage.prompt}
    return json_response({"object": "list", "data": data, "model": call.model, "usage": usage}, headers=call.headers)


embeddings = endpoint(POST=create)
