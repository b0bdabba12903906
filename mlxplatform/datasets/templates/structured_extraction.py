"""Texts turned into JSON of a given schema by constrained decoding; the row teaches the extraction."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec

from mlxplatform.datasets import schemas
from mlxplatform.datasets.inputs import bad
from mlxplatform.datasets.templates.base import (
    Ask,
    Draft,
    Drop,
    Field,
    Inputs,
    Source,
    Template,
    chat_row,
    paragraphs,
    system,
    user,
)
from mlxplatform.inference.contract import Constraint

TOKENS, TEMPERATURE = 700, 0.2


def check_inputs(inputs: Inputs, project: str) -> None:
    schema = inputs["schema"]
    if not isinstance(schema, dict):
        raise bad("inputs.schema", "schema must be a JSON Schema object")
    try:
        schemas.check(schema)
    except schemas.BadSchema as error:
        raise bad("inputs.schema", str(error)) from None


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    for number, text in enumerate(paragraphs(inputs["texts"]), 1):
        yield Source(str(number), text)


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    schema = inputs["schema"]
    asked = f"{inputs['task']}\n\nText:\n{source.data}"
    answer = await ask(
        "extract",
        [system(f"You answer with JSON of this schema:\n{json.dumps(schema, ensure_ascii=False)}"), user(asked)],
        max_tokens=TOKENS,
        temperature=TEMPERATURE,
        constraint=Constraint("json_schema", schema),
    )
    problem = schemas.problem(answer.text, schema)
    if problem:
        return [Drop("schema", problem)]
    compact = json.dumps(msgspec.json.decode(answer.text), ensure_ascii=False)
    return [chat_row(("user", asked), ("assistant", compact))]


TEMPLATE = Template(
    id="structured_extraction",
    label="Structured extraction",
    description="Extracts JSON of your schema from each text; the decoder cannot leave the schema.",
    output_format="messages",
    fields=(
        Field("texts", "textarea", "Texts", hint="separated by blank lines", required=True),
        Field("schema", "json", "JSON Schema of the answer", required=True),
        Field("task", "text", "Task", default="Extract the data from this text."),
    ),
    sources=sources,
    build=build,
    needs_llm=True,
    repeatable=True,
    check_inputs=check_inputs,
)
