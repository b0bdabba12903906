"""Which value wins: request, model defaults, ours. Pure functions of data.

Thinking is resolved once and feeds both the template and the default temperature, so the two cannot
disagree.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import msgspec

from mlxplatform.inference.contract import InferenceRequest, Refusal, Sampling

#: Temperature of a request that sets none, for a model that states none.
DEFAULT_TEMPERATURE = 0.7

#: Hottest default while thinking is off: without a reasoning phase to correct it, hotter text derails.
NO_THINK_TEMPERATURE = 0.7

#: Tokens that presence and frequency penalties look back on when the request does not say.
PENALTY_WINDOW = 20

#: Effort words for templates that know only these.
_EFFORT = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high"}
_EFFORT_WITH_XHIGH = {**_EFFORT, "high": "xhigh", "xhigh": "xhigh"}

_draws = itertools.count(time.time_ns() & 0xFFFFFFFF)
#: Odd constant of a Weyl sequence (2**32 divided by the golden ratio): neighbours in time differ in all bits.
_WEYL = 0x9E3779B9


def fresh_seed() -> int:
    """A 32-bit seed unlike its neighbours, also within one clock tick."""
    return (time.time_ns() ^ (next(_draws) * _WEYL)) & 0xFFFFFFFF


def thinking(request: InferenceRequest) -> bool | None:
    """True or False when asked for, None to let the template decide. An explicit flag beats the effort."""
    explicit = request.template_kwargs.get("enable_thinking")
    if isinstance(explicit, bool):
        return explicit
    if request.reasoning_effort is not None:
        return request.reasoning_effort != "none"
    return None


def with_model_default(request: InferenceRequest, tool_format: str) -> InferenceRequest:
    """The request with thinking switched off for models that should not think unasked (MiniCPM 5)."""
    if tool_format != "minicpm5" or thinking(request) is not None:
        return request
    return msgspec.structs.replace(request, template_kwargs={**request.template_kwargs, "enable_thinking": False})


def forces_call(request: InferenceRequest) -> bool:
    """Whether the answer has to be a tool call."""
    if request.tool_choice not in ("auto", "none"):
        return True
    return request.constraint is not None and request.constraint.kind == "tool_call"


def may_jump(request: InferenceRequest) -> bool:
    """Whether determined tokens may be put in instead of drawn: a forced call nobody wants repeated or measured."""
    return forces_call(request) and request.sampling.seed is None and request.logprobs is None


def template_variables(request: InferenceRequest, source: str) -> dict[str, Any]:
    """What the template is told about thinking, plus the client's own template arguments."""
    variables = dict(request.template_kwargs)
    wanted = thinking(request)
    if wanted is not None:
        variables["enable_thinking"] = wanted
        variables.setdefault("thinking", wanted)
    table = _EFFORT_WITH_XHIGH if "xhigh" in source else _EFFORT
    effort = table.get(request.reasoning_effort or "")
    if effort is not None and "reasoning_effort" in source:
        variables.setdefault("reasoning_effort", effort)
    return variables


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def sampling(request: InferenceRequest, model_defaults: dict[str, Any]) -> Sampling:
    """Every field filled. ``model_defaults`` is the model's generation_config."""
    asked = request.sampling

    def first(name: str, fallback: float) -> float:
        own: float | None = getattr(asked, name)
        if own is not None:
            return own
        stated = _number(model_defaults.get(name))
        return fallback if stated is None else stated

    temperature = first("temperature", DEFAULT_TEMPERATURE)
    if asked.temperature is None and thinking(request) is False:
        temperature = min(temperature, NO_THINK_TEMPERATURE)
    repetition = asked.repetition_penalty
    if repetition is None:
        repetition = _number(model_defaults.get("repetition_penalty"))
    return msgspec.structs.replace(
        asked,
        temperature=temperature,
        top_p=first("top_p", 0.0),
        top_k=int(first("top_k", 0)),
        min_p=asked.min_p or 0.0,
        xtc_probability=asked.xtc_probability or 0.0,
        xtc_threshold=asked.xtc_threshold or 0.0,
        seed=fresh_seed() if asked.seed is None else asked.seed,
        repetition_penalty=repetition,
        presence_penalty=asked.presence_penalty or 0.0,
        frequency_penalty=asked.frequency_penalty or 0.0,
        repetition_context_size=PENALTY_WINDOW if asked.repetition_context_size is None else asked.repetition_context_size,
        presence_context_size=PENALTY_WINDOW if asked.presence_context_size is None else asked.presence_context_size,
        frequency_context_size=PENALTY_WINDOW if asked.frequency_context_size is None else asked.frequency_context_size,
    )


def check_logit_bias(bias: dict[int, float] | None, vocab_size: int) -> None:
    """Refuse ids outside the vocabulary: an index past the end wraps around inside a kernel."""
    for token in bias or {}:
        if not 0 <= token < vocab_size:
            raise Refusal(
                400,
                "invalid_value",
                f"logit_bias: token id {token} is not in the model's vocabulary (0 to {vocab_size - 1}).",
                param="logit_bias",
            )


def too_long(prompt_tokens: int, context: int, *, estimated: bool = False) -> Refusal:
    about = "about " if estimated else ""
    return Refusal(
        400,
        "context_length_exceeded",
        f"This model's maximum context length is {context} tokens. However, your messages resulted in {about}"
        f"{prompt_tokens} tokens. Please reduce the length of the messages.",
        param="messages",
    )


def room(prompt_tokens: int, context: int, asked: int | None) -> int:
    """Tokens the answer may have.

    Raises:
        Refusal: 400 ``context_length_exceeded`` when not even one fits.
    """
    left = context - prompt_tokens
    if left < 1:
        raise too_long(prompt_tokens, context)
    return left if asked is None else min(asked, left)
