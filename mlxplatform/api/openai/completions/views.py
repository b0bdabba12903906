"""``POST /v1/completions``."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponseBase

from mlxplatform.api.openai.completions.parse import parse
from mlxplatform.api.openai.completions.render import CompletionFrames, completion_object
from mlxplatform.api.running import Choices, drive, gather, place_call
from mlxplatform.http.body import read_json
from mlxplatform.http.errors import json_response
from mlxplatform.http.sse import EventStreamResponse
from mlxplatform.http.views import endpoint


async def create(request: HttpRequest) -> HttpResponseBase:
    call = await place_call(request, parse(await read_json(request)))
    choices = await Choices.submit(call.requests)
    if call.asked.stream:
        return EventStreamResponse(drive(call, choices, CompletionFrames(call)), call.headers)
    return json_response(completion_object(call, await gather(call, choices)), headers=call.headers)


completions = endpoint(POST=create)
