"""Questions about passages of documents, answered from the passage only."""

from __future__ import annotations

from collections.abc import Iterator

from mlxplatform.datasets.filters.distinct import words
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
from mlxplatform.datasets.templates.parsing import question_in
from mlxplatform.inference.contract import Message

QUESTION_TOKENS, ANSWER_TOKENS = 120, 400
NOT_THERE = "The passage does not say."
#: Share of an answer's words that must come from the passage or the question, when that is asked for; words are
#: compared by their beginnings, which survives most inflection.
GROUNDED, STEM = 0.6, 5
#: A statement with this share of its words from the passage repeats it and asks nothing.
REPEATS = 0.8
#: Examples say more to a small model than any description; after one alone it goes on with the passage.
EXAMPLES = (
    ("The Eiffel Tower was finished in 1889. It is 330 metres high and stands in Paris.", "How high is the Eiffel Tower?"),
    (
        "To keep bread fresh, wrap it in a cloth. In a plastic bag it grows mould.",
        "What should bread be wrapped in to keep it fresh?",
    ),
    ("Dear Max, the meeting is moved to Friday, because Lena is ill. Best, Kim", "Why is the meeting moved to Friday?"),
)


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


def grounded(answer: str, passage: str) -> float:
    """Share of the answer's words that the passage holds; its numbers must all be there. 1 for "it does not say"."""
    if NOT_THERE.rstrip(".").casefold() in answer.casefold():
        return 1.0
    known = words(passage)
    if {word for word in words(answer) if word.isdecimal()} - set(known):
        return 0.0
    stems = {word[:STEM] for word in known}
    said = [word for word in words(answer) if len(word) > 3 or not word.isascii()] or words(answer)
    return sum(word[:STEM] in stems for word in said) / len(said) if said else 0.0


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    for index, passage in enumerate(chunk(inputs["documents"], inputs["min_chunk_chars"])):
        for number in range(inputs["questions_per_chunk"]):
            yield Source(f"{index}.{number}", (index, number, passage))


def _asking(passage: str) -> str:
    return f"Passage:\n{passage}\n\nQuestion about this passage:"


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    index, number, passage = source.data
    other = f" Ask about another point than the {number} most obvious ones." if number else ""
    question = await ask(
        "question",
        [
            system(f"You write one clear question that the given passage answers.{other} You reply with the question only."),
            *(turn for shown, question in EXAMPLES for turn in (user(_asking(shown)), Message("assistant", question))),
            user(_asking(passage)),
        ],
        max_tokens=QUESTION_TOKENS,
    )
    asked = question_in(question.text)
    if not asked:
        return [Drop("empty_question")]
    if asked.endswith((".", "。")) and grounded(asked, passage) >= REPEATS:
        return [Drop("no_question", asked[:120])]
    grounding = f'Answer only from this passage. When it does not contain the answer, say "{NOT_THERE}"\n\nPassage:\n{passage}'
    answer = await ask("answer", [system(grounding), user(asked)], max_tokens=ANSWER_TOKENS)
    said = answer.text.strip()
    if not said:
        return [Drop("empty_answer", asked[:120])]
    if inputs["only_grounded"] == "yes" and grounded(said, f"{passage}\n{asked}") < GROUNDED:
        return [Drop("not_grounded", said[:120])]
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
        Field(
            "only_grounded",
            "select",
            "Keep only answers whose words and numbers are in the passage",
            default="no",
            choices=("no", "yes"),
        ),
    ),
    sources=sources,
    build=build,
    needs_llm=True,
    repeatable=True,
)
