"""Every protocol's parser and renderer as a batch line sees them: no stream, no store, answers all at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from mlxplatform.api.anthropic import parse as anthropic_parse
from mlxplatform.api.anthropic import render as anthropic_render
from mlxplatform.api.fields import wrong_value
from mlxplatform.api.openai.chat import parse as chat_parse
from mlxplatform.api.openai.chat import render as chat_render
from mlxplatform.api.openai.completions import parse as completions_parse
from mlxplatform.api.openai.completions import render as completions_render
from mlxplatform.api.openai.embeddings import parse as embeddings_parse
from mlxplatform.api.openai.embeddings.views import embedding_value
from mlxplatform.api.openai.responses import parse as responses_parse
from mlxplatform.api.openai.responses.items import refuse_references
from mlxplatform.api.openai.responses.render import ResponseState, facts_of
from mlxplatform.api.reckoning import total
from mlxplatform.api.running import Asked, Call
from mlxplatform.batches import protocols
from mlxplatform.batches.protocols import LineProtocol, ParsedLine
from mlxplatform.http.errors import error_body
from mlxplatform.inference.client import Completion
from mlxplatform.inference.contract import Event, Finished, Reasoning, Refusal, Text, Usage
from mlxplatform.rows.contract import Output

Parse = Callable[[Mapping[str, Any]], Asked]
Render = Callable[[Call, list[Completion]], dict[str, Any]]


def register_all() -> None:
    """Fill the registry of line protocols."""
    lines: tuple[tuple[str, str, Parse, Render], ...] = (
        ("/v1/chat/completions", "chatcmpl-", chat_parse.parse, _chat),
        ("/v1/completions", "cmpl-", completions_parse.parse, completions_render.completion_object),
        ("/v1/embeddings", "embd-", embeddings_parse.parse, _embeddings),
        ("/v1/responses", "resp_", _parse_response, _response),
        (protocols.MESSAGES, "msg_", anthropic_parse.parse, _message),
    )
    for endpoint, prefix, parse, render in lines:
        dialect = "anthropic" if endpoint == protocols.MESSAGES else "openai"
        protocols.register(LineProtocol(endpoint, _parser(prefix, parse, render), _error(dialect)))


def _error(dialect: Any) -> Callable[[Refusal], dict[str, Any]]:
    return lambda refusal: error_body(dialect, refusal)


def _parser(
    prefix: str, parse: Callable[[Mapping[str, Any]], Asked], render: Render
) -> Callable[[Mapping[str, Any]], ParsedLine]:
    def read(body: Mapping[str, Any]) -> ParsedLine:
        asked = parse(body)
        if asked.memory:
            raise wrong_value("memory", "a batch line is one request and looks nothing up.")
        if images := asked.request.images:
            message = "Batch lines are words only; send pictures in a request of their own."
            raise Refusal(400, "unsupported_content", message, param=images[0].param)

        def usage(outputs: Sequence[Output]) -> Usage:
            return total([_completion(output) for output in outputs], asked.n)

        def answer(request_id: str, model: str, created: int, outputs: Sequence[Output]) -> dict[str, Any]:
            return render(_call(asked, prefix + request_id.rpartition("_")[2], model, created), [_completion(o) for o in outputs])

        return ParsedLine(asked.requests, asked.model, usage, answer)

    return read


def _call(asked: Asked, answer_id: str, model: str, created: int) -> Call:
    """The call as if it had come alone; its id is the line's, the same however often the line is run."""
    first, *others = asked.requests
    requests = (msgspec.structs.replace(first, id=answer_id), *others)
    return Call(dataclasses.replace(asked, requests=requests), requests, model, created, {}, "default", "")


def _completion(output: Output) -> Completion:
    return Completion(
        model=output.model,
        text=output.text,
        reasoning=output.reasoning,
        tool_calls=output.tool_calls,
        finish_reason=output.finish_reason,  # type: ignore[arg-type]
        stop_sequence=output.stop_sequence,
        usage=output.usage,
        logprobs=output.logprobs,
        vectors=output.vectors,
        dimensions=output.dimensions,
        scores=output.scores,
    )


def _chat(call: Call, answers: list[Completion]) -> dict[str, Any]:
    return chat_render.completion_object(chat_render.facts_of(call), answers)


def _message(call: Call, answers: list[Completion]) -> dict[str, Any]:
    return anthropic_render.message_object(call, answers[0])


def _embeddings(call: Call, answers: list[Completion]) -> dict[str, Any]:
    (answer,) = answers
    data = [
        {"object": "embedding", "index": index, "embedding": embedding_value(vector, call.asked.extra)}
        for index, vector in enumerate(answer.vectors)
    ]
    usage = {"prompt_tokens": answer.usage.prompt, "total_tokens": answer.usage.prompt}
    return {"object": "list", "data": data, "model": call.model, "usage": usage}


def _parse_response(body: Mapping[str, Any]) -> Asked:
    """A response without history: a line stands for itself.

    Raises:
        Refusal: it refers to another response, or asks for the background.
    """
    for name in ("previous_response_id", "conversation", "background"):
        if body.get(name):
            raise Refusal(400, "unsupported_parameter", f"'{name}' is not possible in a batch.", param=name)
    ask = responses_parse.parse({**body, "store": False})
    refuse_references(ask.items, "input")
    return responses_parse.to_asked(ask, "resp_", ask.items, ask.instructions)


def _response(call: Call, answers: list[Completion]) -> dict[str, Any]:
    (answer,) = answers
    state = ResponseState(facts_of(call))
    events: list[Event] = []
    if answer.reasoning:
        events.append(Reasoning(answer.reasoning))
    if answer.text:
        events.append(Text(answer.text, answer.logprobs))
    events += answer.tool_calls
    events.append(Finished(answer.finish_reason, answer.usage, answer.stop_sequence))
    for number, event in enumerate(events, 1):
        state.event(number, event)
    return state.object()
