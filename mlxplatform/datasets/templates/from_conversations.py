"""Conversations become rows: pasted as JSON, or those the platform has imported. No model."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from mlxplatform.datasets import convert, formats, origins, shape
from mlxplatform.datasets.imports.items import Problem, Unreadable
from mlxplatform.datasets.imports.opening import items
from mlxplatform.datasets.templates.base import PROJECT, Ask, Draft, Drop, Field, Inputs, Source, Template


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    if inputs["conversations"].strip():
        yield from _pasted(inputs["conversations"])
        return
    for key, messages in origins.conversations(inputs[PROJECT]):
        yield Source(f"c{key}", messages)


def _pasted(pasted: str) -> Iterator[Source | Drop]:
    """Conversations as a JSON array, or one a line."""
    try:
        for number, item in enumerate(items(io.BytesIO(pasted.encode("utf-8", "surrogatepass")), "jsonl", "The text"), 1):
            yield _dropped(item) if isinstance(item, Problem) else _conversation(number, *item)
    except Unreadable as error:
        yield Drop(error.code, error.message)


def _dropped(problem: Problem) -> Drop:
    column = f", column {problem.column}" if problem.column else ""
    return Drop(problem.code, problem.reason, f"{problem.where}{column}")


def _conversation(number: int, where: str, entry: Any) -> Source | Drop:
    try:
        row = formats.to_messages(convert.read(entry)[1])
    except convert.BadRow as error:
        return Drop("not_a_conversation", f"{error.field}: {error.message}", where)
    if row is None:
        return Drop("not_a_conversation", "plain text", where)
    field, why = shape.problem(row, check="types")
    return Drop("not_a_conversation", f"{field} {why}", where) if why else Source(str(number), row["messages"])


def trimmed(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """From the first user turn (system messages before it stay) to the last assistant turn."""
    roles = [message.get("role") for message in messages]
    if "user" not in roles or "assistant" not in roles:
        return messages
    first = roles.index("user")
    last = len(roles) - 1 - roles[::-1].index("assistant")
    kept = [message for message in messages[:first] if message.get("role") == "system"][:1]
    return [*kept, *messages[first : last + 1]]


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    messages = trimmed(source.data)
    if len(messages) < inputs["min_turns"]:
        return [Drop("too_few_turns", f"{len(messages)}")]
    return [Draft({"messages": messages})]


TEMPLATE = Template(
    id="from_conversations",
    label="From conversations",
    description="Turns conversations into rows: pasted ones, or those imported for memory.",
    output_format="messages",
    fields=(
        Field("conversations", "textarea", "Conversations as JSON or JSON Lines", hint="empty: the imported conversations"),
        Field("min_turns", "number", "Fewest turns", default=2, minimum=2, maximum=1000),
    ),
    sources=sources,
    build=build,
)
