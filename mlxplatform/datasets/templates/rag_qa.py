"""Questions about passages of documents, answered from the passage only."""

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

QUESTION_TOKENS, ANSWER_TOKENS = 120, 400
NOT_THERE = "The passage does not say."


def chunk(text: str, minimum: int) -> list[str]:
    """Paragraphs glued until each chunk has ``minimum`` characters; a short tail joins the last chunk."""
    chunks: list[str] = []
    current = ""
    for paragraph in paragraphs(text):
        current = f"{current}\n\n{paragraph}" if current else paragraph
        if len(current) >= minimum:
            chunks.append(current)
            current = ""
    if current and chunks:
        chunks[-1] = f"{chunks[-1]}\n\n{current}"
    elif current:
        chunks.append(current)
    return chunks


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    for index, passage in enumerate(chunk(inputs["documents"], inputs["min_chunk_chars"])):
        for number in range(inputs["questions_per_chunk"]):
            yield Source(f"{index}.{number}", (index, number, passage))


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    index, number, passage = source.data
    other = f" Ask about another point than the {number} most obvious ones." if number else ""
    question = await ask(
        "question",
        [
            system("You write questions that a given passage answers."),
            user(f"Passage:\n{passage}\n\nWrite one clear question this passage answers.{other} Give the question only."),
        ],
        max_tokens=QUESTION_TOKENS,
    )
    asked = question.text.strip()
    if not asked:
        return [Drop("empty_question")]
    grounding = f'Answer only from this passage. When it does not contain the answer, say "{NOT_THERE}"\n\nPassage:\n{passage}'
    answer = await ask("answer", [system(grounding), user(asked)], max_tokens=ANSWER_TOKENS)
    said = answer.text.strip()
    if not said:
        return [Drop("empty_answer", asked[:120])]
    return [
        chat_row(
            ("system", grounding),
            ("user", asked),
            ("assistant", said),
            metadata={"chunk_index": index, "passage_chars": len(passage)},
        )
    ]


TEMPLATE = Template(
    id="rag_qa",
    label="Questions from documents",
    description="Cuts documents into passages, writes questions about each and answers them from the passage alone.",
    output_format="messages",
    fields=(
        Field("documents", "textarea", "Documents", required=True),
        Field("questions_per_chunk", "number", "Questions per passage", default=2, minimum=1, maximum=50),
        Field("min_chunk_chars", "number", "Shortest passage, characters", default=200, minimum=40, maximum=20_000),
    ),
    sources=sources,
    build=build,
    needs_llm=True,
    repeatable=True,
)
