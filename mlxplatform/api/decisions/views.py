"""``POST /v1/decisions`` (both wires, told apart by ``input`` and ``state``) and ``POST /v1/systemone``."""

from __future__ import annotations

import asyncio
from typing import Any

from django.http import HttpRequest, HttpResponseBase

from mlxplatform.api.decisions.parse import Decisions, parse_openai, parse_system_one
from mlxplatform.api.decisions.questions import Answer, to_answer, to_request
from mlxplatform.api.openai.responses.render import usage_object
from mlxplatform.api.reckoning import Reckoning
from mlxplatform.api.running import Asked, Call, place_call
from mlxplatform.http.body import read_json
from mlxplatform.http.errors import json_response
from mlxplatform.http.views import endpoint
from mlxplatform.inference import client
from mlxplatform.inference.client import Completion, new_id
from mlxplatform.inference.contract import Refusal, Usage

#: Questions of one call asked at the same time; the first is asked alone, so that the others find the state cached.
AT_ONCE = 8


async def decide(http: HttpRequest, decisions: Decisions) -> tuple[Call, list[Answer], Usage]:
    base = new_id("dec_")
    requests = [to_request(question, decisions.state, f"{base}-{index}") for index, question in enumerate(decisions.questions)]
    call = await place_call(http, Asked(requests=tuple(requests), model=decisions.model, ignored=decisions.ignored))
    gate = asyncio.Semaphore(AT_ONCE)

    async def score(index: int) -> Completion:
        async with gate:
            return await client.run(call.requests[index])

    reckoning = Reckoning(call)
    tasks: list[asyncio.Task[Completion]] = []
    left = True
    try:
        results = [await score(0)]
        tasks += [asyncio.create_task(score(index)) for index in range(1, len(requests))]
        results += await asyncio.gather(*tasks)
        for index, result in enumerate(results):
            reckoning.completion(index, result)
        left = False
    except Refusal as refusal:
        reckoning.failed(refusal.failed())
        raise
    finally:
        for task in tasks:
            task.cancel()
        await reckoning.close(cancelled=left)
    used = Usage(sum(result.usage.prompt for result in results), 0, sum(result.usage.cached for result in results))
    answers = [to_answer(question, result.scores) for question, result in zip(decisions.questions, results, strict=True)]
    return call, answers, used


def openai_answer(answer: Answer) -> dict[str, Any]:
    question = answer.question
    head = {"type": question.kind, "name": question.key}
    if question.kind == "predicate":
        return {**head, "probability": answer.probabilities[0]}
    pairs = list(zip(question.options, answer.probabilities, strict=True))
    if question.kind == "choice":
        probabilities = [{"value": option.value, "probability": p} for option, p in pairs]
        return {**head, "choice": answer.best.value, "confidence": answer.confidence, "probabilities": probabilities}
    levels = [{"label": option.value, "value": level, "probability": p} for level, (option, p) in enumerate(pairs)]
    return {**head, "score": answer.expected_level, "confidence": answer.confidence, "probabilities": levels}


def system_one_answer(answer: Answer) -> dict[str, Any]:
    question = answer.question
    if question.kind == "predicate":
        return {"type": "noul", "noul": answer.probabilities[0]}
    if question.kind == "choice":
        probabilities = {option.value: p for option, p in zip(question.options, answer.probabilities, strict=True)}
        return {"type": "choice", "choice": answer.best.value, "probabilities": probabilities, "confidence": answer.confidence}
    return {
        "type": "score",
        "score": answer.expected_level,
        "probabilities": {str(level): p for level, p in enumerate(answer.probabilities)},
        "legend": {str(level): option.value for level, option in enumerate(question.options)},
        "confidence": answer.confidence,
    }


async def _openai(request: HttpRequest, body: dict[str, Any]) -> HttpResponseBase:
    call, answers, used = await decide(request, parse_openai(body))
    answer = {"model": call.model, "answers": [openai_answer(item) for item in answers], "usage": usage_object(used)}
    return json_response(answer, headers=call.headers)


async def _system_one(request: HttpRequest, body: dict[str, Any]) -> HttpResponseBase:
    call, answers, used = await decide(request, parse_system_one(body))
    by_key = {str(item.question.key): system_one_answer(item) for item in answers}
    usage = {"input_tokens": used.prompt, "output_tokens": 0}
    return json_response({"id": call.id, "model": call.model, "answers": by_key, "usage": usage}, headers=call.headers)


async def create(request: HttpRequest) -> HttpResponseBase:
    """The form is chosen by shape."""
    body = await read_json(request)
    if "input" not in body and "state" in body:
        return await _system_one(request, body)
    return await _openai(request, body)


async def create_system_one(request: HttpRequest) -> HttpResponseBase:
    """System One clients expect 422 for whatever is wrong with their body."""
    try:
        return await _system_one(request, await read_json(request))
    except Refusal as refusal:
        if refusal.status == 400:
            refusal.status = 422
        raise


decisions = endpoint(POST=create)
system_one = endpoint(POST=create_system_one)
