"""Questions that described people would ask about a subject, answered."""

from __future__ import annotations

from collections.abc import Iterator

from mlxplatform.datasets.templates.base import Ask, Draft, Drop, Field, Inputs, Source, Template, chat_row, lines, system, user
from mlxplatform.datasets.templates.parsing import question_in
from mlxplatform.inference.contract import Message

QUESTION_TOKENS, ANSWER_TOKENS = 160, 600
#: Told only whom to be, a small model repeats the order or speaks about the person.
EXAMPLES = (
    (
        "A retired pilot with a small boat",
        "sleep",
        "I still wake up at four as if I had to fly. How do I get my body used to seven o'clock?",
    ),
    ("A girl of twelve who plays chess", "school", "Which subjects help me most if I want to build a chess computer one day?"),
    ("A gardener in a dry country", "", "What can I plant now that needs water only once a week?"),
)


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    personas = lines(inputs["personas"])
    topics = lines(inputs["topics"]) or [""]
    for who, persona in enumerate(personas, 1):
        for what, topic in enumerate(topics, 1):
            for number in range(1, inputs["questions_each"] + 1):
                yield Source(f"{who}.{what}.{number}", (persona, topic, number))


def _asking(persona: str, topic: str, number: int = 1) -> str:
    about = f"\nTopic: {topic}" if topic else ""
    other = f"\nQuestion number {number}: about another side of it." if number > 1 else ""
    return f"Person: {persona}{about}{other}\nTheir question:"


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    persona, topic, number = source.data
    question = await ask(
        "question",
        [
            system("You write the question that a person would ask an assistant, in the person's own way."),
            *(turn for who, what, said in EXAMPLES for turn in (user(_asking(who, what)), Message("assistant", said))),
            user(_asking(persona, topic, number)),
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
