"""Questions that described people would ask about a subject, answered."""

from __future__ import annotations

from collections.abc import Iterator

from mlxplatform.datasets.templates.base import Ask, Draft, Drop, Field, Inputs, Source, Template, chat_row, lines, system, user
from mlxplatform.datasets.templates.parsing import question_in

QUESTION_TOKENS, ANSWER_TOKENS = 160, 600


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    personas = lines(inputs["personas"])
    topics = lines(inputs["topics"]) or [""]
    for who, persona in enumerate(personas, 1):
        for what, topic in enumerate(topics, 1):
            for number in range(1, inputs["questions_each"] + 1):
                yield Source(f"{who}.{what}.{number}", (persona, topic, number))


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    persona, topic, number = source.data
    about = f" about {topic}" if topic else ""
    other = f" This is question number {number}; pick another side of it." if number > 1 else ""
    question = await ask(
        "question",
        [
            system(f"You are this person: {persona}"),
            user(f"Ask an assistant one question{about}, in your own way.{other} Write the question only."),
        ],
        max_tokens=QUESTION_TOKENS,
    )
    asked = question_in(question.text)
    if not asked:
        return [Drop("empty_question", persona[:120])]
    answer = await ask("answer", [user(asked)], max_tokens=ANSWER_TOKENS)
    if not answer.text:
        return [Drop("empty_answer", asked[:120])]
    metadata = {"persona": persona, **({"topic": topic} if topic else {})}
    return [chat_row(("user", asked), ("assistant", answer.text), metadata=metadata)]


TEMPLATE = Template(
    id="persona_qa",
    label="Personas",
    description="Lets described people ask questions, optionally about given topics, and answers them.",
    output_format="messages",
    fields=(
        Field("personas", "textarea", "People, one description a line", required=True),
        Field("topics", "textarea", "Topics, one a line", hint="optional"),
        Field("questions_each", "number", "Questions per person and topic", default=2, minimum=1, maximum=100),
    ),
    sources=sources,
    build=build,
    needs_llm=True,
    repeatable=True,
)
