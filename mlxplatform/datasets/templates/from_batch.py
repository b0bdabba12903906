"""Requests and answers of a finished batch become chat rows. No model."""

from __future__ import annotations

from collections.abc import Iterator

from mlxplatform.datasets import origins
from mlxplatform.datasets.templates.base import PROJECT, Ask, Draft, Drop, Field, Inputs, Source, Template


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    exchanges = origins.batch_exchanges(inputs["batch_id"], inputs[PROJECT])
    for number, (key, asked, answer) in enumerate(exchanges, 1):
        where = f"custom_id {key[:80]}"
        if answer is None:
            yield Drop("not_answered", "", where)
        elif asked is None:
            yield Drop("not_text", "the request holds more than text", where)
        elif not answer.strip():
            yield Drop("empty_answer", "", where)
        else:
            yield Source(str(number), (asked, answer))


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    asked, answer = source.data
    kept = [message for message in asked if inputs["keep_system"] == "yes" or message["role"] != "system"]
    return [Draft({"messages": [*kept, {"role": "assistant", "content": answer}]})]


TEMPLATE = Template(
    id="from_batch",
    label="From a batch",
    description="Turns the requests and answers of a finished batch into rows.",
    output_format="messages",
    fields=(
        Field("batch_id", "text", "Batch", hint="batch_… or msgbatch_…", required=True),
        Field("keep_system", "select", "Keep system messages", default="yes", choices=("yes", "no")),
    ),
    sources=sources,
    build=build,
)
