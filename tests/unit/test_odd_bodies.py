"""Every value of every body replaced by every odd one: it is parsed into what the contract can carry, or refused by name.

A value that slips through unchecked breaks far from here: the gpu process cannot read the request, and nobody answers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mlxplatform.api.anthropic import parse as anthropic
from mlxplatform.api.audio import parse as audio
from mlxplatform.api.decisions import parse as decisions
from mlxplatform.api.decisions.questions import to_request
from mlxplatform.api.ollama import parse as ollama
from mlxplatform.api.openai.chat import parse as chat
from mlxplatform.api.openai.completions import parse as completions
from mlxplatform.api.openai.embeddings import parse as embeddings
from mlxplatform.api.openai.responses import parse as responses
from mlxplatform.api.rerank import parse as rerank
from mlxplatform.inference.contract import InferenceRequest, Refusal, decode_request, encode

ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    2**63,
    1e300,
    "",
    "x",
    "\0",
    [],
    [[]],
    [None],
    [5],
    {},
    {"type": []},
    {"a": None},
    {"type": "x"},
]
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FUNCTION = {"type": "function", "function": {"name": "f", "description": "d", "parameters": PARAMETERS, "strict": True}}
SAMPLING = {
    "temperature": 0.5,
    "top_p": 0.9,
    "seed": 3,
    "logit_bias": {"5": 1},
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "hlg": {"enabled": True, "width": 1},
}
CHAT = {
    "model": "m",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "s"}]},
        {"role": "user", "content": "q", "name": "n"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "r", "refusal": None},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "42"}]},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}][:1]},
    ],
    "tools": [FUNCTION],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "parallel_tool_calls": False,
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_completion_tokens": 5,
    "max_tokens": 5,
    "n": 2,
    "stop": ["a"],
    "logprobs": True,
    "top_logprobs": 2,
    "reasoning_effort": "low",
    "chat_template_kwargs": {"enable_thinking": True},
    "store": True,
    "metadata": {"a": "b"},
    "adapter": "a",
    "session_id": "s",
    "prompt_cache_key": "k",
    "modalities": ["text"],
    "user": "u",
    **SAMPLING,
}
FORMATTED = {
    "messages": [{"role": "user", "content": "q"}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": PARAMETERS, "strict": True}},
}
RESPONSE = {
    "model": "m",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "t"}]},
        {"role": "user", "content": "q"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "o"}]},
        {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "i"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "o"},
    ],
    "instructions": "i",
    "tools": [{"type": "function", "name": "f", "parameters": PARAMETERS, "strict": True}, {"type": "web_search"}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": PARAMETERS}},
    "reasoning": {"effort": "low"},
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 2,
    "max_output_tokens": 5,
    "truncation": "auto",
    "metadata": {"a": "b"},
    "stream": True,
    "store": False,
    "background": False,
    "stop": ["a"],
    **SAMPLING,
}
MESSAGE = {
    "model": "m",
    "max_tokens": 5,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "search_result", "title": "t", "content": []}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": ""},
                {"type": "text", "text": "a"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "o"}], "is_error": True}
            ],
        },
    ],
    "tools": [
        {"name": "f", "description": "d", "input_schema": PARAMETERS, "strict": True},
        {"type": "web_search_20250305", "name": "w"},
    ],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": PARAMETERS}},
    "stop_sequences": ["a"],
    "stream": True,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 4,
    "metadata": {"user_id": "u"},
}
OLLAMA_CHAT = {
    "model": "m",
    "messages": [
        {"role": "user", "content": "q", "images": []},
        {"role": "assistant", "content": "", "thinking": "t", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "tool", "content": "o", "tool_name": "f"},
    ],
    "tools": [FUNCTION],
    "format": PARAMETERS,
    "think": "low",
    "stream": False,
    "keep_alive": "5m",
    "options": {"temperature": 0.5, "top_k": 3, "num_predict": 5, "stop": ["a"], "seed": 1, "repeat_last_n": 5, "num_ctx": 100},
}
DECISIONS = {
    "model": "m",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "t"}, {"type": "input_json", "data": {"a": 1}}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "o"},
    ],
    "questions": [
        {"type": "predicate", "name": "a", "instructions": "i"},
        {"type": "choice", "instructions": "i", "choices": [{"value": "a", "description": "d"}, {"value": True}]},
        {"type": "score", "instructions": "i", "levels": [{"label": "a", "description": "d"}, {"label": "b"}]},
    ],
}
SYSTEM_ONE = {
    "state": {"a": [1, {"b": None}]},
    "questions": {
        "a": {"type": "noul", "instructions": "i", "criteria": {"true": "t", "false": "f"}},
        "b": {"type": "choice", "instructions": {"x": 1}, "criteria": {"x": "d", "y": None}},
        "c": {"type": "score", "instructions": "i", "criteria": ["a", "b"]},
    },
}


def of_response(body: dict[str, Any]) -> list[InferenceRequest]:
    ask = responses.parse(body)
    return list(responses.to_asked(ask, "resp_1", ask.items, ask.instructions).requests)


def of_decisions(parse: Callable[[Any], Any]) -> Callable[[dict[str, Any]], list[InferenceRequest]]:
    def requests(body: dict[str, Any]) -> list[InferenceRequest]:
        found = parse(body)
        return [to_request(question, found.state, "dec_1") for question in found.questions]

    return requests


def of(parse: Callable[[Any], Any]) -> Callable[[dict[str, Any]], list[InferenceRequest]]:
    def requests(body: dict[str, Any]) -> list[InferenceRequest]:
        asked = parse(body)
        return [] if asked is None else list(asked.requests)

    return requests


BODIES: dict[str, tuple[Callable[[dict[str, Any]], list[InferenceRequest]], dict[str, Any]]] = {
    "chat": (of(chat.parse), CHAT),
    "chat, formatted": (of(chat.parse), FORMATTED),
    "chat, allowed tools": (
        of(chat.parse),
        {
            "messages": [{"role": "user", "content": "q"}],
            "tools": [FUNCTION],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
            },
        },
    ),
    "chat, choices": (of(chat.parse), {**FORMATTED, "response_format": None, "guided_choice": ["a", "b"]}),
    "chat, structured": (of(chat.parse), {**FORMATTED, "response_format": None, "structured_outputs": {"regex": "a+"}}),
    "completions": (of(completions.parse), {"prompt": ["a", "b"], "logprobs": 2, "n": 2, "best_of": 2, "stop": "x", **SAMPLING}),
    "completions, tokens": (of(completions.parse), {"prompt": [[1, 2], [3]], "max_tokens": 5}),
    "responses": (of_response, RESPONSE),
    "messages": (of(anthropic.parse), MESSAGE),
    "ollama chat": (of(ollama.parse_chat), OLLAMA_CHAT),
    "ollama generate": (of(ollama.parse_generate), {"model": "m", "prompt": "p", "system": "s", "raw": False, "suffix": ""}),
    "ollama embed": (of(ollama.parse_embed), {"model": "m", "input": ["a"], "truncate": False, "dimensions": 5}),
    "embeddings": (of(embeddings.parse), {"model": "m", "input": ["a", "b"], "encoding_format": "float", "dimensions": 8}),
    "embeddings, tokens": (of(embeddings.parse), {"model": "m", "input": [[1, 2], [3]]}),
    "rerank": (
        of(rerank.parse),
        {"model": "m", "query": "q", "documents": ["a", {"text": "b"}], "top_n": 1, "return_documents": True},
    ),
    "decisions": (of_decisions(decisions.parse_openai), DECISIONS),
    "system one": (of_decisions(decisions.parse_system_one), SYSTEM_ONE),
    "transcription": (
        of(lambda body: audio.parse(body, "transcribe")),
        {"file": "file", "language": "en", "temperature": "0.5", "stream": "true", "response_format": "json"},
    ),
}
#: A form's values are texts, and lists of them where several may be given.
TEXTS: list[Any] = [None, 5, 0.5, True, [], ["x"], {}, "", "x", "\0", "1e999", "-1", "nan", "١", "true"]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value can be replaced: everywhere below the top."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield (*path, key)
        yield from places(child, (*path, key))


def replaced(body: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(body)
    holder: Any = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = copy.deepcopy(value)
    return changed


@pytest.mark.parametrize("name", BODIES)
def test_no_odd_value_slips_through(name: str) -> None:
    parse, body = BODIES[name]
    assert parse(body), "the body itself is in order"
    for path in places(body):
        for odd in TEXTS if name == "transcription" else ODD:
            changed = replaced(body, path, odd)
            try:
                requests = parse(changed)
            except Refusal as refusal:
                assert 400 <= refusal.status < 500, (path, odd)
                assert refusal.message and refusal.code, (path, odd)
                continue
            except Exception as error:
                raise AssertionError(f"{'.'.join(map(str, path))} = {odd!r}") from error
            for request in requests:
                try:
                    raw = encode(request)
                except OverflowError:
                    continue  # beyond 64 bits: refused when it is sent
                assert decode_request(raw) == request, (path, odd)


@pytest.mark.parametrize(
    ("parse", "body", "param"),
    [
        (chat.parse, {**CHAT, "tools": [{"type": "function", "function": {"name": "f\n"}}]}, "tools[0].function.name"),
        (anthropic.parse, {**MESSAGE, "tools": [{"name": "f\n", "input_schema": {"type": "object"}}]}, "tools.0.name"),
        (
            chat.parse,
            {**FORMATTED, "response_format": {"type": "json_schema", "json_schema": {"name": "n\n", "schema": {}}}},
            "response_format",
        ),
    ],
)
def test_a_name_may_not_end_in_a_line_break(parse: Callable[[Any], Any], body: dict[str, Any], param: str) -> None:
    """A pattern's dollar sign also stands before one; the name would break the line it is written on."""
    with pytest.raises(Refusal) as refused:
        parse(body)
    assert (refused.value.param or "").replace("[", ".").replace("]", "").startswith(param.replace("[", ".").replace("]", ""))
