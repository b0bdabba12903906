"""Conversations become rows: pasted as JSON, or those the platform has imported. No model."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

from mlxplatform.datasets import convert, origins
from mlxplatform.datasets.templates.base import PROJECT, Ask, Draft, Drop, Field, Inputs, Source, Template
from mlxplatform.files import jsonl


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    if inputs["conversations"].strip():
        yield from _pasted(inputs["conversations"])
        return
    for key, messages in origins.conversations(inputs[PROJECT]):
        yield Source(f"c{key}", messages)


def _pasted(text: str) -> Iterator[Source | Drop]:
    """A JSON array of conversations, or one a line."""
    found: Iterator[tuple[str, Any] | Drop]
    if text.lstrip().startswith("["):
        try:
            found = iter([(f"entry {place}", entry) for place, entry in enumerate(json.loads(text), 1)])
        except (ValueError, RecursionError) as error:
            yield Drop("not_json", str(error)[:200])
            return
    else:
        found = _lines(text)
    for number, item in enumerate(found, 1):
        if isinstance(item, Drop):
            yield item
            continue
        where, entry = item
        try:
            if not isinstance(entry, dict):
                raise convert.BadRow("row", f"expected an object, got {convert.kind(entry)}")
            row = convert.to_messages(convert.read(entry)[1])
        except convert.BadRow as error:
            yield Drop("not_a_conversation", f"{error.field}: {error.message}", where)
            continue
        if row is None:
            yield Drop("not_a_conversation", "plain text", where)
        else:
            yield Source(str(number), row["messages"])


def _lines(text: str) -> Iterator[tuple[str, Any] | Drop]:
    for item in jsonl.rows(io.BytesIO(text.encode("utf-8", "surrogatepass"))):
        yield (
            Drop(item.code, item.reason, f"line {item.line}")
            if isinstance(item, jsonl.BadLine)
            else (f"line {item[0].number}", item[1])
        )


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
