"""Question and answer pairs typed or pasted by a person become chat rows. No model."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mlxplatform.datasets.templates.base import Ask, Draft, Drop, Field, Inputs, Source, Template, chat_row, paragraphs

_QUESTION = re.compile(r"^[ \t]*q[ \t]*:[ \t]*(.*)$", re.IGNORECASE)
_ANSWER = re.compile(r"^[ \t]*a[ \t]*:[ \t]*(.*)$", re.IGNORECASE)


def split_pair(block: str) -> tuple[str, str] | None:
    """The question (rest of the first Q: line) and the answer (from the A: line to the block's end)."""
    question = answer = None
    rows = block.split("\n")
    for number, line in enumerate(rows):
        if question is None and (found := _QUESTION.match(line)):
            question = found.group(1).strip()
        elif answer is None and (found := _ANSWER.match(line)):
            answer = "\n".join([found.group(1), *rows[number + 1 :]]).strip()
            break
    if answer is not None and question is None:
        question = next((m.group(1).strip() for m in map(_QUESTION.match, answer.split("\n")) if m), None)
    return (question, answer) if question and answer else None


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    for number, block in enumerate(paragraphs(inputs["pairs_text"]), 1):
        pair = split_pair(block)
        if pair is None:
            yield Drop(
                "no_pair", f"needs a line starting with Q: and one starting with A:, got {block[:80]!r}", f"block {number}"
            )
        else:
            yield Source(str(number), pair)


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    question, answer = source.data
    return [chat_row(("user", question), ("assistant", answer))]


TEMPLATE = Template(
    id="sft_qa_pairs",
    label="Question and answer pairs",
    description="Turns pasted Q: and A: blocks, separated by blank lines, into chat rows.",
    output_format="messages",
    fields=(
        Field(
            "pairs_text",
            "textarea",
            "Pairs",
            hint="Q: What is MLX?\nA: An array framework.\n\nQ: …\nA: …",
            required=True,
        ),
    ),
    sources=sources,
    build=build,
)
