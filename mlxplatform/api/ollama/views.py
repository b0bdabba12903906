"""Ollama's API: ``/api/chat``, ``/api/generate``, ``/api/embed``, ``/api/embeddings``, ``/api/tags``, ``/api/show``,
``/api/ps``, ``/api/version``. Errors are the platform's, whose ``error`` text is where Ollama clients look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponseBase, StreamingHttpResponse

from mlxplatform.api.fields import missing
from mlxplatform.api.ollama.parse import parse_chat, parse_embed, parse_generate, plain_name
from mlxplatform.api.ollama.render import Lines, now
from mlxplatform.api.openai.embeddings.views import floats
from mlxplatform.api.openai.models import offered, served
from mlxplatform.api.running import Asked, Choices, drive, gather, place_call
from mlxplatform.http.body import read_json
from mlxplatform.http.errors import json_response
from mlxplatform.http.sse import HEADERS
from mlxplatform.http.views import endpoint
from mlxplatform.inference.placement import ServedModel, model_not_found

#: What clients that check for features are told; the chat and embed endpoints are those of this version.
VERSION = "0.12.0"


async def _answer(request: HttpRequest, asked: Asked) -> HttpResponseBase:
    call = await place_call(request, asked)
    lines = Lines(call)
    if not asked.request.messages and asked.request.prompt is None:
        # Clients send an empty request to load a model; nothing is generated.
        return json_response({**lines.part("", "", []), "done": True, "done_reason": "load"})
    choices = await Choices.submit(call.requests)
    if asked.stream:
        headers = {**HEADERS, **call.headers}
        return StreamingHttpResponse(drive(call, choices, lines), content_type="application/x-ndjson", headers=headers)
    (answer,) = await gather(call, choices)
    return json_response(lines.whole(answer), headers=call.headers)


async def post_chat(request: HttpRequest) -> HttpResponseBase:
    return await _answer(request, parse_chat(await read_json(request)))


async def post_generate(request: HttpRequest) -> HttpResponseBase:
    return await _answer(request, parse_generate(await read_json(request)))


async def _vectors(request: HttpRequest, body: Mapping[str, Any]) -> tuple[str, list[list[float]], int]:
    asked = parse_embed(body)
    if asked is None:
        return str(body.get("model", "")), [], 0
    call = await place_call(request, asked)
    (answer,) = await gather(call, await Choices.submit(call.requests))
    return call.model, [floats(vector) for vector in answer.vectors], answer.usage.prompt


async def post_embed(request: HttpRequest) -> dict[str, Any]:
    model, vectors, tokens = await _vectors(request, await read_json(request))
    return {"model": model, "embeddings": vectors, "prompt_eval_count": tokens}


async def post_embeddings(request: HttpRequest) -> dict[str, Any]:
    _, vectors, _ = await _vectors(request, await read_json(request))
    return {"embedding": vectors[0] if vectors else []}


def details(model: ServedModel) -> dict[str, Any]:
    quantization = model.entry.get("quantization") or {}
    family = str(model.entry.get("architecture") or "")
    return {
        "format": "mlx",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": _millions(model.entry.get("parameters")),
        "quantization_level": f"{quantization['bits']}bit" if quantization.get("bits") else str(model.entry.get("dtype") or ""),
    }


def _millions(count: Any) -> str:
    if not isinstance(count, int):
        return ""
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"


def listed(model: ServedModel) -> dict[str, Any]:
    return {
        "name": model.id,
        "model": model.id,
        "modified_at": now(),
        "size": model.entry.get("bytes") or 0,
        "digest": str(model.entry.get("revision") or ""),
        "details": details(model),
    }


async def tags(request: HttpRequest) -> dict[str, Any]:
    return {"models": [listed(model) for model in offered(await served(request)).values()]}


async def resident(request: HttpRequest) -> dict[str, Any]:
    return {"models": [listed(model) for model in offered(await served(request)).values() if model.resident]}


async def show(request: HttpRequest) -> dict[str, Any]:
    body = await read_json(request)
    name = body.get("model", body.get("name"))
    if not isinstance(name, str):
        raise missing("model")
    models = await served(request)
    model = models.get(plain_name(name))
    if model is None:
        raise model_not_found(name)
    capabilities = ["embedding"] if model.kind == "embedding" else ["completion", "tools"]
    if model.entry.get("sees"):
        capabilities.append("vision")
    architecture = str(model.entry.get("architecture") or "model")
    info = {"general.architecture": architecture, f"{architecture}.context_length": model.context}
    return {"details": details(model), "model_info": info, "capabilities": capabilities, "parameters": "", "template": ""}


async def version(request: HttpRequest) -> dict[str, Any]:
    return {"version": VERSION}


chat = endpoint(POST=post_chat)
generate = endpoint(POST=post_generate)
embed = endpoint(POST=post_embed)
embeddings = endpoint(POST=post_embeddings)
tags_view = endpoint(GET=tags)
ps_view = endpoint(GET=resident)
show_view = endpoint(POST=show)
version_view = endpoint(GET=version)
