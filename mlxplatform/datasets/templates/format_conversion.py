"""JSON Lines with two text fields become chat rows. No model."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

from mlxplatform.datasets.templates.base import Ask, Draft, Drop, Field, Inputs, Source, Template, chat_row
from mlxplatform.files import jsonl


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    user_key, assistant_key = inputs["user_key"], inputs["assistant_key"]
    for line in jsonl.lines(io.BytesIO(inputs["input_jsonl"].encode("utf-8", "surrogatepass"))):
        if isinstance(line, jsonl.BadLine):
            yield _unusable(line)
            continue
        row = jsonl.parse(line)
        if isinstance(row, jsonl.BadLine):
            yield _unusable(row)
            continue
        where = f"line {line.number}"
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
        yield Source(str(line.number), tuple(pair))


def _unusable(line: jsonl.BadLine) -> Drop:
    column = f", column {line.column}" if line.column else ""
    return Drop(line.code, line.reason, f"line {line.line}{column}")


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
