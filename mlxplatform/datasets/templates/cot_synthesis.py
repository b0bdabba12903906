"""Answers with their reasoning written out before them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mlxplatform.datasets.templates.base import (
    Answer,
    Ask,
    Draft,
    Drop,
    Field,
    Inputs,
    Source,
    Template,
    chat_row,
    lines,
    system,
    user,
)

TOKENS = 1024
DEFAULT_CATEGORY = "general reasoning"
#: A small model marks its reasoning when it has seen it marked; told so, it answers at once. Shown in one text, since
#: some chat templates leave the reasoning out of earlier turns.
EXAMPLE = (
    "A pen costs 2 euros and a book 5. What do 3 pens and a book cost?",
    "3 pens cost 3 times 2 euros, which is 6 euros.\nWith the book it is 6 plus 5 euros, which is 11 euros.",
    "11 euros.",
)

_THINK = re.compile(r"<think>(.*?)(?:</think>|\Z)(.*)", re.DOTALL)


def trace_and_answer(answer: Answer) -> tuple[str, str]:
    """(reasoning, answer), from what the model marked, else the last paragraph against the rest."""
    if answer.reasoning.strip():
        return answer.reasoning.strip(), answer.text.strip() or answer.reasoning.strip().split("\n\n")[-1]
    text = answer.raw.strip()
    found = _THINK.search(text)
    if found:
        trace, said = found.group(1).strip(), found.group(2).strip()
        return (trace, said) if said else _by_paragraph(trace)
    if "</think>" in text:
        trace, _, said = text.partition("</think>")
        return trace.strip(), said.strip()
    return _by_paragraph(text)


def _by_paragraph(text: str) -> tuple[str, str]:
    parts = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
    if not parts:
        return "", ""
    return ("\n\n".join(parts[:-1]) or parts[-1]), parts[-1]


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    for number, question in enumerate(lines(inputs["questions"]), 1):
        yield Source(str(number), question)


def thought(trace: str, answer: str) -> str:
    return f"<think>\n{trace}\n</think>\n\n{answer}"


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    category = inputs["category"] or DEFAULT_CATEGORY
    said = await ask(
        "think",
        [
            system(
                f"You are strong at {category}. Think step by step inside <think> and </think>, then give the answer.\n\n"
                f"Example question: {EXAMPLE[0]}\nYour reply:\n{thought(*EXAMPLE[1:])}"
            ),
            user(source.data),
        ],
        max_tokens=TOKENS,
    )
    trace, answer = trace_and_answer(said)
    if not answer:
        return [Drop("empty_answer", source.data[:120])]
    return [chat_row(("user", source.data), ("assistant", thought(trace, answer)), metadata={"category": category})]


TEMPLATE = Template(
    id="cot_synthesis",
    label="Chain of thought",
    description="Asks for reasoning in a think block and then the answer.",
    output_format="messages",
    fields=(
        Field("questions", "textarea", "Questions, one a line", required=True),
        Field(
            "category", "text", "Category", hint="empty: general reasoning", default="math, logic, planning, technical analysis"
        ),
    ),
    sources=sources,
    build=build,
    needs_llm=True,
    repeatable=True,
)
