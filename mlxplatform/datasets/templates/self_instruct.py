"""New instructions in the manner of seed instructions. The answers stay empty: prompts only, for a later pass."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mlxplatform.datasets.filters.repetition import is_repetitive
from mlxplatform.datasets.templates.base import (
    Ask,
    Draft,
    Drop,
    Field,
    Inputs,
    Source,
    Template,
    always,
    chat_row,
    lines,
    system,
    user,
)
from mlxplatform.datasets.templates.parsing import list_of, string_list

#: Tokens granted per instruction asked for, so that a long list is not cut.
TOKENS_PER_VARIANT = 64
MIN_TOKENS = 512
#: Other seeds shown as examples: their variety is what the model is to continue.
EXAMPLES = 4
#: Characters of an instruction: so many times the longest seed, within these bounds. What fills them was cut off.
LONGER, SHORT, LONG = 2, 120, 1200
#: A small model goes on from the instruction to its answer.
_ANSWERED = re.compile(r"\banswer(?: is|:)|\n", re.IGNORECASE)


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    for number, seed in enumerate(lines(inputs["seeds"]), 1):
        yield Source(str(number), seed)


def why_not(text: str, longest: int) -> str:
    """Why a text is no instruction of its own, or ""."""
    if len(text) >= longest:
        return "cut_off"
    if _ANSWERED.search(text):
        return "answered"
    return "degenerate" if is_repetitive(text) else ""


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    wanted = inputs["variants_per_seed"]
    others = [seed for seed in lines(inputs["seeds"]) if seed != source.data][:EXAMPLES]
    shown = "\n".join(f"- {seed}" for seed in [*others, source.data])
    longest = min(max(SHORT, LONGER * max(map(len, [*others, source.data]))), LONG)
    answer = await ask(
        "variants",
        [
            system("You invent varied, self-contained instructions for training an assistant."),
            user(
                f"Instructions somebody gave to an assistant:\n{shown}\n\nWrite {wanted} new instructions in the manner of the "
                "last one, each about something different. Answer with a JSON array of strings and nothing else."
            ),
        ],
        max_tokens=max(MIN_TOKENS, TOKENS_PER_VARIANT * wanted),
        constraint=list_of(wanted, longest),
    )
    found = string_list(answer.text)[:wanted]
    if not found:
        return [Drop("no_list", f"no list of instructions in {answer.text[:120]!r}")]
    return [
        Drop(reason, text[:120]) if (reason := why_not(text, longest)) else chat_row(("user", text), ("assistant", ""))
        for text in found
    ]


TEMPLATE = Template(
    id="self_instruct",
    label="Self-Instruct",
    description="Asks the model for new instructions like your seeds. Rows are prompts only; fill the answers with answer_fill.",
    output_format="messages",
    fields=(
        Field("seeds", "textarea", "Seed instructions, one a line", required=True),
        Field("variants_per_seed", "number", "New instructions per seed", default=5, minimum=1, maximum=50),
    ),
    sources=sources,
    build=build,
    needs_llm=True,
    repeatable=True,
    prompts_only=always,
    check="answers_optional",
    pool_limit=0.7,
    pool=lambda inputs: lines(inputs["seeds"]),
)
