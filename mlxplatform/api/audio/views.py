"""``POST /v1/audio/transcriptions`` and ``/v1/audio/translations``: a recording as text.

The recording travels through the broker beside its request, and leaves it when a host takes it up.
"""

from __future__ import annotations

from typing import Literal

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, HttpResponseBase

from mlxplatform.api.audio.parse import MIB, MOST_BYTES, read_object, read_request
from mlxplatform.api.audio.render import CONTENT_TYPES, TranscriptFrames, body
from mlxplatform.api.running import Call, Choices, drive, gather, place_call
from mlxplatform.broker import queues
from mlxplatform.broker.connections import async_client
from mlxplatform.http.body import read_json
from mlxplatform.http.errors import json_response
from mlxplatform.http.sse import EventStreamResponse
from mlxplatform.http.views import endpoint
from mlxplatform.inference.contract import Refusal
from mlxplatform.inference.placement import live_hosts

KIND = "transcription"


async def _submit(call: Call, recording: bytes) -> Choices:
    key = queues.audio_key(call.id)
    await async_client().set(key, recording, ex=queues.REQUEST_TTL)
    try:
        return await Choices.submit(call.requests)
    except BaseException:
        await async_client().delete(key)
        raise


async def _answer(request: HttpRequest, task: Literal["transcribe", "translate"]) -> HttpResponseBase:
    if request.content_type == "application/json":
        # Base64 is four thirds of the recording; the rest is small.
        asked, recording = read_object(await read_json(request, MOST_BYTES * 4 // 3 + MIB), task)
    else:
        asked, recording = await sync_to_async(read_request)(request, task)
    if not any(model.kind == KIND for host in await live_hosts() for model in host.models):
        raise Refusal(503, "model_unavailable", "There is no transcription model on this server.")
    call = await place_call(request, asked)
    choices = await _submit(call, recording)
    if asked.stream:
        return EventStreamResponse(drive(call, choices, TranscriptFrames(call)), call.headers)
    (answer,) = await gather(call, choices)
    shown = body(answer, asked.extra)
    if isinstance(shown, str):
        kind = f"{CONTENT_TYPES[asked.extra['format']]}; charset=utf-8"
        return HttpResponse(shown, content_type=kind, headers=call.headers)
    return json_response(shown, headers=call.headers)


async def transcribe(request: HttpRequest) -> HttpResponseBase:
    return await _answer(request, "transcribe")


async def translate(request: HttpRequest) -> HttpResponseBase:
    return await _answer(request, "translate")


transcriptions = endpoint(POST=transcribe)
translations = endpoint(POST=translate)
