"""Answers for rows that have none yet: completes what self_instruct left empty."""

from __future__ import annotations

from collections.abc import Iterator

from mlxplatform.datasets import origins
from mlxplatform.datasets.inputs import bad
from mlxplatform.datasets.templates.base import PROJECT, Ask, Draft, Drop, Field, Inputs, Source, SourceError, Template
from mlxplatform.inference.contract import Message

TOKENS = 700


def check_inputs(inputs: Inputs, project: str) -> None:
    try:
        origins.ready_version(inputs["dataset_id"], project)
    except SourceError as error:
        raise bad("inputs.dataset_id", str(error)) from None


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    for place, row in origins.rows_of(inputs["dataset_id"], inputs[PROJECT]):
        messages = row.get("messages")
        if not isinstance(messages, list) or not any(message["role"] == "user" for message in messages):
            yield Drop("no_question", "", f"row {place}")
            continue
        last = messages[-1]
        if last["role"] == "assistant" and (last.get("content") or "").strip():
            if inputs["keep_answered"] == "yes":
                yield Source(str(place), (row, None))
            else:
                yield Drop("answered_already", "", f"row {place}")
            continue
        asked = messages[:-1] if last["role"] == "assistant" else messages
        yield Source(str(place), (row, asked))


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    row, asked = source.data
    if asked is None:
        return [Draft(row)]
    before = [Message("system", inputs["system_prompt"])] if inputs["system_prompt"] and asked[0]["role"] != "system" else []
    turns = [Message(message["role"], message.get("content") or "") for message in asked]
    answer = await ask("answer", [*before, *turns], max_tokens=TOKENS)
    if not answer.text:
        return [Drop("empty_answer", turns[-1].content or "")]
    return [Draft({**row, "messages": [*asked, {"role": "assistant", "content": answer.text}]})]


TEMPLATE = Template(
    id="answer_fill",
    label="Fill in answers",
    description="Takes a dataset whose rows are prompts only and lets the model answer them.",
    output_format="messages",
    fields=(
        Field("dataset_id", "text", "Dataset", hint="ds_…, or ds_…@2 for a version", required=True),
        Field("system_prompt", "textarea", "System prompt for the answers", hint="not kept in the rows"),
        Field("keep_answered", "select", "Rows that have an answer", default="yes", choices=("yes", "no")),
    ),
    sources=sources,
    build=build,
    needs_llm=True,
    check_inputs=check_inputs,
)
