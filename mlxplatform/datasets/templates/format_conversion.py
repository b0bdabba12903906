"""JSON Lines with two text fields become chat rows. No model."""

from __future__ import annotations

import json
from collections.abc import Iterator

from mlxplatform.datasets.templates.base import Ask, Draft, Drop, Field, Inputs, Source, Template, chat_row


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    user_key, assistant_key = inputs["user_key"], inputs["assistant_key"]
    text = inputs["input_jsonl"].removeprefix("\ufeff").replace("\r\n", "\n")
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"line {number}"
        try:
            row = json.loads(line, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            yield Drop("not_json", str(error)[:200], where)
            continue
        if not isinstance(row, dict):
            yield Drop("not_an_object", f"expected an object, got {type(row).__name__}", where)
            continue
        pair = [as_text(row.get(key)) for key in (user_key, assistant_key)]
        missing = [key for key, value in zip((user_key, assistant_key), pair, strict=True) if value is None]
        if missing:
            wrong = [key for key in missing if row.get(key) is not None]
            if wrong:
                yield Drop("not_text", f"{wrong[0]} must be text, a number or true/false", where)
            else:
                yield Drop(
                    "missing_key", f"{', '.join(missing)} missing; the line has {', '.join(list(row)[:10]) or 'no keys'}", where
                )
            continue
        yield Source(str(number), tuple(pair))


def as_text(value: object) -> str | None:
    """Scalars as people write them; None for what is missing or is no text (objects and lists)."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return json.dumps(value)
    return None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    question, answer = source.data
    return [chat_row(("user", question), ("assistant", answer))]


TEMPLATE = Template(
    id="format_conversion",
    label="Format conversion",
    description="Turns JSON Lines with an input and an output field into chat rows.",
    output_format="messages",
    fields=(
        Field("input_jsonl", "textarea", "JSON Lines", hint='{"input": "…", "output": "…"}', required=True),
        Field("user_key", "text", "Field with the user's text", default="input"),
        Field("assistant_key", "text", "Field with the assistant's text", default="output"),
    ),
    sources=sources,
    build=build,
)
