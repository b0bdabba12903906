"""An embeddings body as one contract request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxplatform.api.fields import (
    MAX_COUNT,
    array,
    honoured,
    ignored,
    integer,
    one_of,
    read_fields,
    table,
    text,
    wrong_type,
    wrong_value,
)
from mlxplatform.api.running import Asked
from mlxplatform.inference.client import new_id
from mlxplatform.inference.contract import InferenceRequest, Refusal

#: Inputs of one request; OpenAI's limit.
MAX_INPUTS = 2048


def read_input(raw: Any, param: str) -> list[str] | list[list[int]]:
    """Texts or token lists, at least one, none empty, all of one kind."""
    if isinstance(raw, str):
        return [_text(raw, param)]
    items = array(raw, param)
    if not items:
        raise Refusal(400, "empty_array", f"Invalid '{param}': expected at least one input.", param=param)
    if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        return [_tokens(items, param)]
    if len(items) > MAX_INPUTS:
        raise Refusal(
            400,
            "array_above_max_length",
            f"Invalid '{param}': at most {MAX_INPUTS} inputs, but got {len(items)}.",
            param=param,
        )
    if all(isinstance(item, str) for item in items):
        return [_text(item, f"{param}[{index}]") for index, item in enumerate(items)]
    if all(isinstance(item, list) for item in items):
        return [_tokens(item, f"{param}[{index}]") for index, item in enumerate(items)]
    raise wrong_type(param, "a string, an array of strings, of token ids, or of arrays of token ids", raw)


def _text(raw: str, param: str) -> str:
    if not raw:
        raise Refusal(400, "invalid_value", f"Invalid value for '{param}': it must not be empty.", param="input")
    return raw


def _tokens(raw: list[Any], param: str) -> list[int]:
    if not raw:
        raise Refusal(400, "invalid_value", f"Invalid value for '{param}': it must not be empty.", param="input")
    check = integer(0, MAX_COUNT)
    return [check(item, f"{param}[{index}]") for index, item in enumerate(raw)]


FIELDS = table(
    honoured("input", read_input, "strings, token ids, and lists of them", required=True),
    honoured("model", text()),
    honoured("encoding_format", one_of("float", "base64"), "float when absent"),
    honoured("dimensions", integer(1, MAX_COUNT), "cuts the vector and normalises it again"),
    honoured("instruction", text(), "prefix of the query format of instruction-tuned models"),
    ignored("user", "no use for it"),
)


def parse(body: Mapping[str, Any]) -> Asked:
    """The request a body asks for; ``extra`` says whether vectors go out as base64.

    Raises:
        Refusal: 400 naming the field.
    """
    fields = read_fields(body, FIELDS)
    if "instruction" in fields and not all(isinstance(item, str) for item in fields["input"]):
        raise wrong_value("instruction", "it needs text inputs.")
    request = InferenceRequest(
        id=new_id("embd-"),
        model="",
        kind="embedding",
        inputs=fields["input"],
        dimensions=fields.get("dimensions"),
        instruction=fields.get("instruction"),
    )
    return Asked(
        requests=(request,),
        model=fields.get("model"),
        ignored=fields.ignored,
        extra=fields.get("encoding_format", "float") == "base64",
    )
