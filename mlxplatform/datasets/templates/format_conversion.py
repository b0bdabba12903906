"""JSON Lines, or an array, with two text fields become chat rows. No model."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any, cast

from mlxplatform.datasets.convert import keys_of
from mlxplatform.datasets.imports.items import Problem, Unreadable
from mlxplatform.datasets.imports.opening import items
from mlxplatform.datasets.templates.base import Ask, Draft, Drop, Field, Inputs, Source, Template, chat_row


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    keys = (inputs["user_key"], inputs["assistant_key"])
    try:
        given = io.BytesIO(inputs["input_jsonl"].encode("utf-8", "surrogatepass"))
        for number, item in enumerate(items(given, "jsonl", "The text"), 1):
            if isinstance(item, Problem):
                column = f", column {item.column}" if item.column else ""
                yield Drop(item.code, item.reason, f"{item.where}{column}")
            else:
                where, row = item
                yield _source(number, where, cast(dict[str, Any], row), keys)
    except Unreadable as error:
        yield Drop(error.code, error.message)


def _source(number: int, where: str, row: dict[str, Any], keys: tuple[str, str]) -> Source | Drop:
    pair = [as_text(row.get(key)) for key in keys]
    missing = [key for key, value in zip(keys, pair, strict=True) if value is None]
    if not missing:
        return Source(str(number), tuple(pair))
    wrong = [key for key in missing if row.get(key) is not None]
    if wrong:
        return Drop("not_text", f"{wrong[0]} must be text, a number or true/false", where)
    return Drop("missing_key", f"{', '.join(missing)} missing; the line has {keys_of(row)}", where)


def as_text(value: object) -> str | None:
    """Scalars as people write them; None for what is missing or is no text (objects and lists)."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return json.dumps(value)
    return None


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
