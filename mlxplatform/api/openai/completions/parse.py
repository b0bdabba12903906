"""A legacy completions body as contract requests: one per prompt and choice, in prompt-major order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxplatform.api.fields import (
    MAX_COUNT,
    array,
    boolean,
    honoured,
    ignored,
    integer,
    read_fields,
    refused,
    table,
    text,
    wrong_type,
    wrong_value,
)
from mlxplatform.api.openai.chat.parse import MAX_CHOICES, MAX_NAME, stream_options
from mlxplatform.api.running import Asked, choices_of
from mlxplatform.api.sampling import OPENAI_FIELDS, sampling_of, stop
from mlxplatform.inference.client import new_id
from mlxplatform.inference.contract import InferenceRequest, Refusal

#: Tokens generated when the body names no number.
DEFAULT_MAX_TOKENS = 512
MAX_LOGPROBS = 5
#: Choices of one request over all its prompts.
MAX_TOTAL = 64

Prompt = str | list[int]


def read_prompts(raw: Any, param: str) -> list[Prompt]:
    """A text, token ids, or a list of either; never empty."""
    if isinstance(raw, str):
        return [_text(raw, param)]
    items = array(raw, param)
    if not items:
        raise Refusal(400, "empty_array", f"Invalid '{param}': expected at least one prompt.", param=param)
    if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        return [_tokens(items, param)]
    if all(isinstance(item, str) for item in items):
        return [_text(item, f"{param}[{index}]") for index, item in enumerate(items)]
    if all(isinstance(item, list) for item in items):
        return [_tokens(item, f"{param}[{index}]") for index, item in enumerate(items)]
    raise wrong_type(param, "a string, an array of strings, of token ids, or of arrays of token ids", raw)


def _text(raw: str, param: str) -> str:
    if not raw:
        raise wrong_value(param, "it must not be empty.")
    return raw


def _tokens(raw: list[Any], param: str) -> list[int]:
    if not raw:
        raise wrong_value(param, "it must not be empty.")
    check = integer(0, MAX_COUNT)
    return [check(item, f"{param}[{index}]") for index, item in enumerate(raw)]


FIELDS = table(
    honoured("prompt", read_prompts, "strings, token ids, and lists of them", required=True),
    honoured("model", text()),
    honoured("stream", boolean),
    honoured("stream_options", stream_options, "include_usage; include_obfuscation has no effect"),
    honoured("max_tokens", integer(1, MAX_COUNT), f"{DEFAULT_MAX_TOKENS} when absent"),
    honoured("n", integer(1, MAX_CHOICES), "choices of each prompt"),
    honoured("echo", boolean, "text prompts only; not together with logprobs"),
    honoured("logprobs", integer(0, MAX_LOGPROBS)),
    honoured("stop", stop, "up to four; empty strings are dropped"),
    honoured("best_of", integer(1, MAX_CHOICES), "only equal to n"),
    honoured("adapter", text(MAX_NAME)),
    honoured("session_id", text(MAX_NAME), "prompt-cache affinity"),
    honoured("prompt_cache_key", text(MAX_NAME), "prompt-cache affinity"),
    *OPENAI_FIELDS,
    refused("suffix", "Insertion is not available for these models.", ""),
    refused("response_format", "It needs a chat; use /v1/chat/completions.", {"type": "text"}),
    ignored("user", "no use for it"),
)


def parse(body: Mapping[str, Any]) -> Asked:
    """The requests a body asks for; ``extra`` is the text to echo before each choice.

    Raises:
        Refusal: 400 naming the field.
    """
    fields = read_fields(body, FIELDS)
    stream, n, prompts = fields.get("stream", False), fields.get("n", 1), fields["prompt"]
    if "stream_options" in fields and not stream:
        raise wrong_value("stream_options", "only allowed when 'stream' is true.")
    if fields.get("best_of", n) != n:
        raise Refusal(400, "unsupported_parameter", "'best_of' other than 'n' is not supported here.", param="best_of")
    if len(prompts) * n > MAX_TOTAL:
        raise wrong_value("prompt", f"prompts times n may be at most {MAX_TOTAL}.")
    echo = fields.get("echo", False)
    if echo and "logprobs" in fields:
        raise wrong_value("echo", "it cannot be combined with 'logprobs'.")
    if echo and not all(isinstance(prompt, str) for prompt in prompts):
        raise wrong_value("echo", "it needs text prompts.")
    base = new_id("cmpl-")
    requests: list[InferenceRequest] = []
    for prompt in prompts:
        request = InferenceRequest(
            id=base,
            model="",
            kind="completion",
            prompt=prompt,
            sampling=sampling_of(fields),
            max_tokens=fields.get("max_tokens", DEFAULT_MAX_TOKENS),
            stop=fields.get("stop", []),
            logprobs=fields.get("logprobs"),
            adapter=fields.get("adapter"),
            session=fields.get("session_id", fields.get("prompt_cache_key")),
        )
        requests += choices_of(request, n, first=len(requests))
    return Asked(
        requests=tuple(requests),
        model=fields.get("model"),
        n=n,
        stream=stream,
        include_usage=fields.get("stream_options", False),
        ignored=fields.ignored,
        extra=[request.prompt if echo else "" for request in requests],
    )
