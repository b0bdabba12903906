"""``POST /v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

import re

from django.http import HttpRequest, HttpResponseBase

from mlxplatform.api import memory_tools
from mlxplatform.api.anthropic.parse import parse
from mlxplatform.api.anthropic.render import MessageFrames, message_object
from mlxplatform.api.fields import wrong_value
from mlxplatform.api.running import Choices, drive, gather, place_call
from mlxplatform.http.body import read_json
from mlxplatform.http.errors import json_response
from mlxplatform.http.sse import EventStreamResponse
from mlxplatform.http.views import endpoint
from mlxplatform.inference.client import count_tokens

_VERSION = re.compile(r"^[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")


def check_version(request: HttpRequest) -> None:
    """Every version speaks the same here, also none; only a header that is no version is refused."""
    version = request.headers.get("anthropic-version")
    if version is not None and not _VERSION.match(version):
        raise wrong_value("anthropic-version", "use a date such as 2023-06-01.")


async def create(request: HttpRequest) -> HttpResponseBase:
    check_version(request)
    asked = parse(memory_tools.with_header(request, await read_json(request)))
    run = await memory_tools.run_for(request, asked.memory)
    call = await place_call(request, asked)
    choices = await Choices.submit(call.requests, run)
    if call.asked.stream:
        return EventStreamResponse(drive(call, choices, MessageFrames(call, choices.prompt_tokens)), call.headers)
    (answer,) = await gather(call, choices)
    return json_response(message_object(call, answer), headers=call.headers)


async def count(request: HttpRequest) -> HttpResponseBase:
    check_version(request)
    call = await place_call(request, parse(memory_tools.with_header(request, await read_json(request)), counting=True))
    return json_response({"input_tokens": await count_tokens(call.requests[0])}, headers=call.headers)


messages = endpoint(POST=create)
messages_count = endpoint(POST=count)
