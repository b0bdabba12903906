"""The instruction behind a good text: the model writes the request, the human text stays the answer."""

from __future__ import annotations

from collections.abc import Iterator

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
from mlxplatform.datasets.templates.examples import request_behind
from mlxplatform.datasets.templates.parsing import score

INSTRUCTION_TOKENS, GRADE_TOKENS = 200, 40
LOWEST, HIGHEST = 1, 5


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    for number, text in enumerate(paragraphs(inputs["texts"]), 1):
        yield Source(str(number), text)


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    text = source.data
    guessed = await ask(
        "instruction",
        request_behind(text),
        max_tokens=INSTRUCTION_TOKENS,
    )
    if not guessed.text:
        return [Drop("empty_instruction", text[:120])]
    metadata: dict[str, object] = {}
    if inputs["min_grade"]:
        verdict = await ask(
            "grade",
            [
                system(f"You grade from {LOWEST} to {HIGHEST} how well an answer fulfils an instruction."),
                user(f"Instruction:\n{guessed.text}\n\nAnswer:\n{text}\n\nReply with the grade only."),
            ],
            max_tokens=GRADE_TOKENS,
            temperature=0.0,
        )
        grade = score(verdict.text, LOWEST, HIGHEST)
        if grade is None or grade < inputs["min_grade"]:
            return [Drop("low_grade", f"{grade if grade is not None else verdict.text[:60]}")]
        metadata["grade"] = grade
    return [chat_row(("user", guessed.text), ("assistant", text), metadata=metadata)]


TEMPLATE = Template(
    id="back_translation",
    label="Back-translation of instructions",
    description="Guesses the instruction for each human text and keeps the text as its answer.",
    output_format="messages",
    fields=(
        Field("texts", "textarea", "Texts", hint="separated by blank lines", required=True),
        Field("min_grade", "number", "Lowest grade of fit, 1 to 5", hint="0: do not grade", default=0, minimum=0, maximum=5),
    ),
    sources=sources,
    build=build,
    needs_llm=True,
    repeatable=True,
)
