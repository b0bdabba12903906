"""Texts turned into JSON of a given schema by constrained decoding; the row teaches the extraction."""

from __future__ import annotations

import json
from collections.abc import Iterator

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from mlxplatform.datasets.filters.rowwise import schema_problem
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
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise bad("inputs.schema", f"not a valid JSON Schema: {error.message[:200]}") from None


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
    problem = schema_problem(answer.text, schema)
    if problem:
        return [Drop("schema", problem)]
    compact = json.dumps(json.loads(answer.text), ensure_ascii=False)
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
