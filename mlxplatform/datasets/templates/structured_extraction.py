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
from mlxplatform.inference.contract import Constraint, Message

TOKENS, TEMPERATURE = 700, 0.2
#: A schema, a text and what is in it. Without, a small model fills the fields with whatever of the text is at hand.
EXAMPLE = (
    {
        "type": "object",
        "properties": {"what": {"type": "string"}, "maker": {"type": "string"}, "price": {"type": "number"}},
        "required": ["what", "maker", "price"],
    },
    "The carpenter Jo Lind asks 240 euros for a table of oak, which took her a week.",
    {"what": "table of oak", "maker": "Jo Lind", "price": 240},
)


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


def _asking(schema: object, task: str, text: str) -> str:
    return f"JSON Schema of the answer:\n{_compact(schema)}\n\n{task}\n\nText:\n{text}"


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    schema, task = inputs["schema"], inputs["task"]
    shown, text, found = EXAMPLE
    answer = await ask(
        "extract",
        [
            system("You answer with JSON that holds what the text says, each thing where the schema wants it."),
            user(_asking(shown, task, text)),
            Message("assistant", _compact(found)),
            user(_asking(schema, task, source.data)),
        ],
        max_tokens=TOKENS,
        temperature=TEMPERATURE,
        constraint=Constraint("json_schema", schema),
    )
    problem = schemas.problem(answer.text, schema)
    if problem:
        return [Drop("schema", problem)]
    said = _compact(msgspec.json.decode(answer.text))
    return [chat_row(("user", f"{task}\n\nText:\n{source.data}"), ("assistant", said))]


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
