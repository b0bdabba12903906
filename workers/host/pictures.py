"""Where the files of a request's images lie: in the broker, beside the request, put there by the web process."""

from __future__ import annotations

from typing import Any

import msgspec
import redis

from mlxplatform.broker import queues
from mlxplatform.inference.contract import InferenceRequest, Refusal

_decoder = msgspec.msgpack.Decoder(list[bytes])


def pictures_of(client: redis.Redis, request: InferenceRequest) -> list[bytes]:
    """The files, in the order of the request's images.

    Raises:
        Refusal: they were lost on their way.
    """
    if not request.pictures:
        return []
    raw: Any = client.get(queues.pictures_key(request.pictures))
    if raw is None:
        raise Refusal(503, "engine_unavailable", "The pictures were lost on their way. Send them again.", retry_after=1)
    files = _decoder.decode(raw)
    return [files[image.number] for image in request.images]
