"""The sampling fields every protocol shares, in their ranges, and the contract's Sampling made of them."""

from __future__ import annotations

from typing import Any

from mlxplatform.api.fields import (
    INT64,
    MAX_COUNT,
    Field,
    Fields,
    boolean,
    honoured,
    integer,
    mapping,
    number,
    wrong_type,
    wrong_value,
)
from mlxplatform.inference.contract import Refusal, Sampling

#: Numbers of the tone-curve sampler, each non-negative.
_HLG_NUMBERS = ("width", "shoulder", "toe", "pivot_offset", "gain")
#: Nats and factors beyond any use; larger numbers overflow in the engine's single precision.
MAX_HLG = 1e4
#: Dividing and multiplying logits by more, or by less, leaves nothing of them in single precision.
PENALTY_RANGE = (0.01, 100.0)
#: Stop strings of one request; OpenAI's limit.
MAX_STOPS = 4


def logit_bias(raw: Any, param: str) -> dict[int, float]:
    """Token ids to added logits; ids beyond the vocabulary are refused at admission, which knows it."""
    if not isinstance(raw, dict):
        raise wrong_type(param, "an object of token ids to numbers", raw)
    return {_token_id(key, param): number(-100, 100)(value, f"{param}.{key[:20]}") for key, value in raw.items()}


def _token_id(key: str, param: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= MAX_COUNT):
        raise Refusal(
            400, "invalid_value", f"'{param}' must be a dict of int to float; '{key[:20]}' is no token id.", param=param
        )
    return int(key)


def hlg(raw: Any, param: str) -> dict[str, Any]:
    curve = mapping(raw, param)
    checked: dict[str, Any] = {}
    for key, value in curve.items():
        name = f"{param}.{key[:40]}"
        if key == "enabled":
            checked[key] = boolean(value, name)
        elif key in _HLG_NUMBERS:
            checked[key] = number(0, MAX_HLG)(value, name)
        else:
            raise Refusal(400, "unsupported_parameter", f"'{name}' is not supported.", param=name)
    return checked


def stop(raw: Any, param: str) -> list[str]:
    """One string or up to four. Empty strings never match anything and are dropped."""
    items = [raw] if isinstance(raw, str) else raw
    if not isinstance(items, list):
        raise wrong_type(param, "a string or an array of strings", raw)
    if len(items) > MAX_STOPS:
        raise wrong_value(param, f"at most {MAX_STOPS} stop strings.")
    for index, item in enumerate(items):
        if not isinstance(item, str):
            raise wrong_type(f"{param}[{index}]", "a string", item)
    return [item for item in items if item]


#: Beyond OpenAI's own fields: what local samplers have.
EXTRA_FIELDS: tuple[Field, ...] = (
    honoured("top_k", integer(0, MAX_COUNT), "0 is off"),
    honoured("min_p", number(0, 1)),
    honoured("xtc_probability", number(0, 1)),
    honoured("xtc_threshold", number(0, 0.5)),
    honoured("repetition_penalty", number(*PENALTY_RANGE)),
    honoured("repetition_context_size", integer(0, MAX_COUNT), "tokens; 0 is the whole history"),
    honoured("presence_context_size", integer(0, MAX_COUNT), "tokens; 0 is the whole history"),
    honoured("frequency_context_size", integer(0, MAX_COUNT), "tokens; 0 is the whole history"),
    honoured("hlg", hlg, "tone-curve sampling"),
)
OPENAI_FIELDS: tuple[Field, ...] = (
    honoured("temperature", number(0, 2), "0 is greedy"),
    honoured("top_p", number(0, 1), "0 and 1 are off"),
    honoured("presence_penalty", number(-2, 2)),
    honoured("frequency_penalty", number(-2, 2)),
    honoured("logit_bias", logit_bias),
    honoured("seed", integer(-INT64, INT64 - 1), "same seed, same build, same batch shape: same text"),
    *EXTRA_FIELDS,
)


def sampling_of(fields: Fields) -> Sampling:
    seed = fields.get("seed")
    return Sampling(
        temperature=fields.get("temperature"),
        top_p=fields.get("top_p"),
        top_k=fields.get("top_k"),
        min_p=fields.get("min_p"),
        xtc_probability=fields.get("xtc_probability"),
        xtc_threshold=fields.get("xtc_threshold"),
        seed=None if seed is None else seed % INT64,
        repetition_penalty=fields.get("repetition_penalty"),
        repetition_context_size=fields.get("repetition_context_size"),
        presence_penalty=fields.get("presence_penalty"),
        presence_context_size=fields.get("presence_context_size"),
        frequency_penalty=fields.get("frequency_penalty"),
        frequency_context_size=fields.get("frequency_context_size"),
        logit_bias=fields.get("logit_bias") or None,
        hlg=fields.get("hlg"),
    )
