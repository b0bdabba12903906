"""Rows with named columns put into a prompt of one's own; the model answers, or a second template does.

The columns come from JSON Lines or from an earlier dataset. A name that a row lacks is an error of that row, never
an empty text.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from mlxplatform.datasets import origins
from mlxplatform.datasets.inputs import bad
from mlxplatform.datasets.templates.base import (
    PROJECT,
    Ask,
    Draft,
    Drop,
    Field,
    Inputs,
    Source,
    SourceError,
    Template,
    chat_row,
    system,
    user,
)
from mlxplatform.datasets.texttemplate import BadTemplate, compiled, template_of
from mlxplatform.files import jsonl

TOKENS = 700
TEMPLATES = ("prompt_template", "answer_template", "system_template")


def _items(inputs: Inputs, project: str) -> Iterator[tuple[str, dict[str, Any]] | Drop]:
    if inputs["dataset_id"]:
        for place, row in origins.rows_of(inputs["dataset_id"], project):
            yield f"row {place}", row
        return
    try:
        for item in jsonl.rows(io.BytesIO(inputs["rows"].encode("utf-8", "surrogatepass"))):
            if isinstance(item, jsonl.BadLine):
                yield Drop(item.code, item.reason, f"line {item.line}")
            else:
                yield f"line {item[0].number}", item[1]
    except jsonl.NotLines as error:
        raise SourceError(error.code, error.message) from None


def check_inputs(inputs: Inputs, project: str) -> None:
    if bool(inputs["rows"].strip()) == bool(inputs["dataset_id"]):
        raise bad("inputs.rows", "give either rows or dataset_id")
    templates = {
        name: compiled(inputs[name], lambda why, name=name: bad(f"inputs.{name}", why))  # type: ignore[misc]
        for name in TEMPLATES
        if inputs[name]
    }
    try:
        first = next((item for item in _items(inputs, project) if not isinstance(item, Drop)), None)
    except SourceError as error:
        raise bad("inputs.dataset_id" if inputs["dataset_id"] else "inputs.rows", error.message) from None
    if first is None:
        raise bad("inputs.rows", "there is no usable row")
    for name, template in templates.items():
        try:
            template.render(first[1])
        except BadTemplate as error:
            raise bad(f"inputs.{name}", f"{first[0]}: {error}") from None


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    for number, item in enumerate(_items(inputs, inputs[PROJECT]), 1):
        yield item if isinstance(item, Drop) else Source(str(number), item)


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    where, row = source.data
    try:
        texts = {name: template_of(inputs[name]).render(row).strip() if inputs[name] else "" for name in TEMPLATES}
    except BadTemplate as error:
        return [Drop("template", str(error), where)]
    if not texts["prompt_template"]:
        return [Drop("empty_prompt", "", where)]
    about = [("system", texts["system_template"])] if texts["system_template"] else []
    said = texts["answer_template"]
    if not inputs["answer_template"]:
        before = [system(texts["system_template"])] if about else []
        said = (await ask("answer", [*before, user(texts["prompt_template"])], max_tokens=TOKENS)).text
    if not said:
        return [Drop("empty_answer", texts["prompt_template"][:120], where)]
    return [chat_row(*about, ("user", texts["prompt_template"]), ("assistant", said))]


TEMPLATE = Template(
    id="column_prompts",
    label="Your own prompt",
    description="Fills a prompt of yours with the columns of each row and lets the model answer, or a second template of yours.",
    output_format="messages",
    fields=(
        Field("rows", "textarea", "Rows as JSON Lines", hint='{"question": "…"}'),
        Field("dataset_id", "text", "or rows of a dataset", hint="ds_…"),
        Field("prompt_template", "textarea", "Prompt", hint="Explain {{ question }} to a child.", required=True),
        Field("answer_template", "textarea", "Answer", hint="empty: the model answers"),
        Field("system_template", "textarea", "System message", hint="optional"),
    ),
    sources=sources,
    build=build,
    needs_llm=True,
    repeatable=True,
    check_inputs=check_inputs,
    calls_model=lambda inputs: not inputs["answer_template"],
)
